// The page: sends images to the worker, and shows its predictions.

import { showBars } from "./bars.js";
import { onImage } from "./image_input.js";
import { describeModel } from "./model_words.js";

const find = (name) => document.getElementById(name);
const part = (selector) => document.querySelector(selector);
let turn = 0;
let ready = false;

function setStatus(text) {
  find("status").textContent = text;
}

function clear() {
  find("error").textContent = "";
  showBars(document, []);
  part(".photo").hidden = true;
}

function showError(text) {
  clear();
  setStatus("");
  find("error").textContent = text;
}

const handlers = {
  about({ name, model, classes, preprocess }) {
    document.title = `${name} – vitrail`;
    part("h2").textContent = name;
    const kinds = classes ? `${classes.length} classes` : "no classes";
    part(".about").textContent = describeModel(model, kinds, ...preprocess.size);
    part(".about").title = model;
  },
  loading({ percent }) {
    setStatus(`Loading the model: ${percent} %`);
  },
  ready() {
    ready = true;
    setStatus(turn ? "Running …" : "Ready.");
  },
  broken({ text }) {
    turn = -1;
    showError(text);
  },
  refused({ number, text }) {
    if (number === turn) showError(text);
  },
  prediction({ number, top, doubts, seen, milliseconds }) {
    if (number !== turn) return;
    showBars(document, top, doubts);
    const canvas = find("seen");
    Object.assign(canvas, { width: seen.width, height: seen.height });
    canvas.getContext("2d").putImageData(seen, 0, 0);
    part(".framed").textContent = `What the model sees. It took ${milliseconds} ms.`;
    part(".photo").hidden = false;
    setStatus("Done.");
  },
};

const worker = new Worker("model_worker.js", { type: "module" });
worker.addEventListener("message", ({ data }) => handlers[data.kind](data));
worker.addEventListener("error", () => {
  handlers.broken({ text: "The model could not be started; this browser may be too old for it." });
});

onImage(([file]) => {
  if (!file || turn < 0) return;
  turn += 1;
  document.body.classList.add("shown");
  clear();
  find("name").textContent = file.name ?? "";
  if (ready) setStatus("Running …");
  worker.postMessage({ number: turn, file });
});
