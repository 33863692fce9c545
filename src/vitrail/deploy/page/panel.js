// One model's column: its classes as bars, and what it attends to.

import { fetchJSON } from "./api.js";
import { asRows, percent, showBars, showNumber } from "./bars.js";
import { decodeView, drawDistances, drawView, drawWhole } from "./drawing.js";
import { describeModel } from "./model_words.js";
import { showSimilar } from "./similar.js";

export class Panel {
  constructor(template, models, model, { onWait, onError }) {
    this.root = template.content.firstElementChild.cloneNode(true);
    this.models = models;
    this.onWait = onWait;
    this.onError = onError;
    this.image = null;
    this.find = (name) => this.root.querySelector(`.${name}`);
    for (const each of models) this.find("model").add(new Option(each.name, each.name));
    this.find("model").value = model;
    this.find("choice").hidden = models.length < 2;
    this.find("model").addEventListener("change", () => this.choose());
    for (const name of ["method", "layer", "head"]) {
      this.find(name).addEventListener("input", () => this.explain());
    }
    for (const name of ["grid", "heat"]) this.find(name).addEventListener("input", () => this.draw());
    this.listen(this.find("view"));
    this.choose();
  }

  get model() {
    return this.models.find((each) => each.name === this.find("model").value);
  }

  choose() {
    const { name, model, classes, targets, image, attention } = this.model;
    this.root.querySelector("h2").textContent = name;
    this.root.setAttribute("aria-label", name);
    const kinds = targets ? `predicts ${targets.join(", ")}` : classes ? `${classes} classes` : "no classes";
    this.find("about").textContent = describeModel(model, kinds, ...image);
    this.find("about").title = model;
    this.clear();
    if (attention) {
      this.find("layer").max = attention.layers - 1;
      this.find("layer").value = attention.layers - 1;
      this.find("head").max = attention.heads;
      this.find("head").value = 0;
    }
    if (this.image) this.show(this.image);
  }

  // Forget the old image's and the old model's results: nothing of them may be drawn again.
  clear() {
    this.stop?.abort();
    this.attentions = new Map();
    this.found = null;
    this.view = null;
    this.distances = null;
    this.chosen = null;
    showBars(this.root, []);
    this.find("strip").replaceChildren();
    this.find("similar").hidden = true;
    this.find("attention").hidden = true;
    this.find("photo").hidden = true;
  }

  address(path, options = {}) {
    return `${path}?${new URLSearchParams({ model: this.model.name, ...options })}`;
  }

  async request(address) {
    const options = { image: this.image, signal: this.stop.signal, onWait: this.onWait };
    const { images } = await fetchJSON(address, options);
    return images[0];
  }

  async show(image) {
    this.clear();
    this.stop = new AbortController();
    this.image = image;
    const { signal } = this.stop;
    drawWhole(this.find("whole"), image, this.model).then((seen) => {
      if (signal.aborted) return;
      this.find("photo").hidden = !seen;
      this.find("framed").textContent = seen === "center" ? "The model sees what is framed." : "";
    });
    try {
      const { classes, attention, index } = this.model;
      if (classes) {
        const { top, values, unsure, ood } = await this.request(this.address("predict"));
        if (signal.aborted) return false;
        showBars(this.root, top ?? asRows(values), { unsure, ood });
      }
      if (attention) await this.explain();
      if (index && !signal.aborted) await this.compare(signal);
      return !signal.aborted;
    } catch (error) {
      if (signal.aborted) return false;
      this.clear();
      this.onError(error);
      return false;
    }
  }

  // An image's most likely class, without showing anything.
  async label(image, signal) {
    if (!this.model.classes) return "";
    const { images } = await fetchJSON(this.address("predict", { top: 1 }), { image, signal, onWait: () => {} });
    const { top, values } = images[0];
    if (values) return asRows(values).map(({ label, value }) => `${label} ${showNumber(value)}`).join(", ");
    const [{ label, probability }] = top;
    return `${label} ${percent(probability).replace(" ", "\u00a0")}`; // kept on one line
  }

  async compare(signal) {
    const { similar } = await this.request(this.address("similar"));
    if (signal.aborted) return;
    const urlOf = ({ id }) => this.address(`similar/${id}`);
    this.find("similar").hidden = false;
    await showSimilar(this.find("strip"), similar, urlOf, { signal, onWait: this.onWait });
  }

  get settings() {
    const method = this.find("method").value;
    if (method !== "raw") return { method };
    const head = Number(this.find("head").value) - 1;
    return { method, layer: this.find("layer").value, ...(head < 0 ? {} : { head }) };
  }

  // Sliders may move faster than responses arrive: the last request is shown.
  async explain() {
    const { settings } = this;
    const raw = settings.method === "raw";
    for (const each of this.root.querySelectorAll(".of-layer")) each.hidden = !raw;
    if (!this.image || !this.model.attention) return;
    const place = JSON.stringify(settings);
    this.wanted = place;
    if (!this.attentions.has(place)) {
      const first = this.view ? {} : { view: true, distances: true };
      const response = this.request(this.address("attention", { ...settings, ...first }));
      const known = this.attentions;
      known.set(place, response);
      response.catch(() => known.delete(place));
    }
    const { signal } = this.stop;
    let found;
    try {
      found = await this.attentions.get(place);
    } catch (error) {
      if (!signal.aborted) this.onError(error);
      return;
    }
    if (signal.aborted) return;
    if (found.view) {
      this.view = decodeView(found.view);
      this.distances = found.distances;
    }
    if (this.wanted !== place || !this.view) return;
    this.found = found;
    this.find("attention").hidden = false;
    this.draw();
  }

  draw() {
    const { found, settings } = this;
    if (!found || !this.view) return;
    const { layers, heads } = this.model.attention;
    const layer = Number(this.find("layer").value);
    const head = Number(this.find("head").value);
    this.find("layer-value").textContent = `${layer + 1} of ${layers}`;
    this.find("head-value").textContent = head ? `${head} of ${heads}` : "mean of all";
    this.find("head").setAttribute("aria-valuetext", this.find("head-value").textContent);
    this.find("layer").setAttribute("aria-valuetext", this.find("layer-value").textContent);
    const row = this.chosen !== null && found.weights ? found.weights[found.prefix + this.chosen] : null;
    const values = row ? row.slice(found.prefix) : found.mask.flat();
    const opacity = Number(this.find("heat").value) / 100;
    const lines = this.find("grid").checked;
    const chosen = row ? this.chosen : null;
    drawView(this.find("view"), { view: this.view, grid: found.grid, values, opacity, lines, chosen });
    this.describe(found, values, chosen);
    const current = settings.method === "raw" ? { layer, head: head ? head - 1 : null } : null;
    drawDistances(this.find("distances"), this.distances, current);
    const means = this.distances.map((each) => each.reduce((sum, one) => sum + one, 0) / each.length);
    const text = `Mean attention distance, one dot per head: ${means[0].toFixed(0)} pixels in the first layer, ${means.at(-1).toFixed(0)} in the last. A trained model's first layers look both near and far, its last ones far.`;
    this.find("distances").setAttribute("aria-label", text);
    this.root.querySelector("figcaption").textContent = text;
  }

  describe(found, values, chosen) {
    const columns = found.grid[1];
    const where = (place) => `row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}`;
    const most = values.indexOf(Math.max(...values));
    let text = `The brightest patch is at ${where(most)}.`;
    if (chosen !== null) {
      text = `The patch at ${where(chosen)} attends most to the one at ${where(most)} (${percent(values[most])}).`;
    } else if (found.weights) {
      text += " Point at a patch, or use the arrow keys, to see what it attends to.";
    }
    this.find("patch").textContent = text;
    const what = found.method === "raw" ? "attention" : found.method;
    this.find("view").setAttribute("aria-label", `The image with its ${what} as heat. ${text}`);
  }

  listen(canvas) {
    const point = ({ type, pointerType, clientX, clientY }) => {
      if (!this.found || (pointerType === "touch" && type === "pointermove")) return;
      const box = canvas.getBoundingClientRect();
      const [rows, columns] = this.found.grid;
      const row = Math.floor(((clientY - box.top) / box.height) * rows);
      const column = Math.floor(((clientX - box.left) / box.width) * columns);
      const place = [Math.min(Math.max(row, 0), rows - 1), Math.min(Math.max(column, 0), columns - 1)];
      const again = pointerType === "touch" && place[0] * columns + place[1] === this.chosen;
      this.pick(...(again ? [null] : place));
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    // A finger always leaves: its choice stays until it touches the same patch again.
    canvas.addEventListener("pointerleave", ({ pointerType }) => pointerType === "touch" || this.pick(null));
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (event.key === "Escape") this.pick(null);
      if (!step || !this.found) return;
      event.preventDefault();
      const [rows, columns] = this.found.grid;
      const from = this.chosen === null ? [Math.floor(rows / 2) - step[0], Math.floor(columns / 2) - step[1]]
        : [Math.floor(this.chosen / columns), this.chosen % columns];
      this.pick((from[0] + step[0] + rows) % rows, (from[1] + step[1] + columns) % columns);
    });
  }

  pick(row, column) {
    const chosen = row === null || !this.found ? null : row * this.found.grid[1] + column;
    if (chosen === this.chosen) return;
    this.chosen = chosen;
    this.draw();
  }
}
