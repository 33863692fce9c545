// The page: hands images to the worker, and shows what it answers.

import { listBars } from "./bars.js";
import { listen } from "./intake.js";

const find = (name) => document.getElementById(name);
const part = (selector) => document.querySelector(selector);
let turn = 0;
let ready = false;

function say(text) {
  find("status").textContent = text;
}

function clear() {
  find("error").textContent = "";
  part(".bars").replaceChildren();
  part("figure").hidden = true;
}

function fail(text) {
  clear();
  say("");
  find("error").textContent = text;
}

const heard = {
  about({ name, model, classes, preprocess }) {
    document.title = `${name} – vitrail`;
    part("h2").textContent = name;
    const [height, width] = preprocess.size;
    const kinds = classes && !model.includes("classes=") ? `${classes.length} classes, ` : "";
    part(".about").textContent = `${model.replaceAll(",", ", ")}, ${kinds}${width} x ${height} pixels`;
  },
  loading({ percent }) {
    say(`Loading the model: ${percent} %`);
  },
  ready() {
    ready = true;
    say(turn ? "Looking …" : "Ready.");
  },
  broken({ text }) {
    turn = -1;
    fail(text);
  },
  refused({ number, text }) {
    if (number === turn) fail(text);
  },
  answer({ number, top, seen, milliseconds }) {
    if (number !== turn) return;
    listBars(part(".bars"), top);
    const canvas = find("seen");
    Object.assign(canvas, { width: seen.width, height: seen.height });
    canvas.getContext("2d").putImageData(seen, 0, 0);
    part("figcaption").textContent = `The image as the model sees it; it took ${milliseconds} ms.`;
    part("figure").hidden = false;
    say("Done.");
  },
};

const worker = new Worker("worker.js", { type: "module" });
worker.addEventListener("message", ({ data }) => heard[data.kind](data));
worker.addEventListener("error", () => {
  heard.broken({ text: "The model could not be started; this browser may be too old for it." });
});

listen((file) => {
  if (!file || turn < 0) return;
  turn += 1;
  clear();
  find("name").textContent = file.name ?? "";
  if (ready) say("Looking …");
  worker.postMessage({ number: turn, file });
});
