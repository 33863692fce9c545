// The page: takes an image, and shows what the models make of it.

import { fetchJSON, useKey } from "./api.js";
import { drawWhole } from "./drawing.js";
import { onImage } from "./image_input.js";
import { Panel } from "./panel.js";

const find = (name) => document.getElementById(name);
let panels = [];
let turn = 0;
let waiting = null; // images that came before the models were known
let labeling = new AbortController();
const THUMBNAIL = { fit: "stretch", crop: 1, image: [1, 1] };

function setStatus(text) {
  find("status").textContent = text;
}

function showError(error) {
  if (error.name === "AbortError") return;
  setStatus("");
  find("error").textContent = error.message;
  find("unlock").hidden = error.status !== 401;
}

async function start() {
  find("error").textContent = "";
  try {
    const models = await fetchJSON("models", { onWait: setStatus });
    find("unlock").hidden = true;
    const callbacks = { onWait: setStatus, onError: showError };
    panels = models.slice(0, 2).map(({ name }) => new Panel(find("panel"), models, name, callbacks));
    find("models").replaceChildren(...panels.map((panel) => panel.root));
    setStatus("");
    if (waiting) takeAll(waiting);
  } catch (error) {
    showError(error);
  }
}

async function take(file) {
  if (!file) return;
  find("name").textContent = file.name ?? "";
  document.body.classList.add("shown");
  turn += 1;
  const mine = turn;
  find("error").textContent = "";
  setStatus("Running …");
  const done = await Promise.all(panels.map((panel) => panel.show(file)));
  if (mine === turn && done.every(Boolean)) setStatus("Done.");
}

// One image is shown at once; of several, each is named in a strip and shown when it is chosen.
async function takeAll(files) {
  if (!files.length) return;
  if (!panels.length) {
    waiting = files;
    find("name").textContent = files[0].name ?? "";
    return;
  }
  waiting = null;
  labeling.abort();
  labeling = new AbortController();
  const { signal } = labeling;
  find("files").hidden = files.length < 2;
  find("files").replaceChildren(...(files.length < 2 ? [] : files.map(makeThumbnail)));
  await take(files[0]);
  if (files.length < 2) return;
  for (const [place, file] of files.entries()) {
    const said = await panels[0].label(file, signal).catch((error) => error.message);
    if (signal.aborted) return;
    find("files").children[place].querySelector("span").textContent = said;
  }
}

function makeThumbnail(file, place) {
  const [row, button, canvas, text] = ["li", "button", "canvas", "span"].map((tag) => document.createElement(tag));
  button.type = "button";
  canvas.setAttribute("aria-hidden", "true");
  button.setAttribute("aria-label", file.name || `image ${place + 1}`);
  button.append(canvas, text);
  row.append(button);
  drawWhole(canvas, file, THUMBNAIL);
  if (place === 0) row.setAttribute("aria-current", "true");
  button.addEventListener("click", () => {
    for (const each of find("files").children) each.removeAttribute("aria-current");
    row.setAttribute("aria-current", "true");
    take(file);
  });
  return row;
}

onImage(takeAll);
find("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(find("key").value);
  start();
});
const redraw = () => panels.forEach((panel) => panel.draw());
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
start();
