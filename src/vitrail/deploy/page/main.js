// The page: takes an image, and shows what the models make of it.

import { fetchJSON, useKey } from "./api.js";
import { onImage } from "./image_input.js";
import { Panel } from "./panel.js";

const find = (name) => document.getElementById(name);
let panels = [];
let turn = 0;
let waiting = null; // an image that came before the models were known

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
    if (waiting) take(waiting);
  } catch (error) {
    showError(error);
  }
}

async function take(file) {
  if (!file) return;
  find("name").textContent = file.name ?? "";
  if (!panels.length) {
    waiting = file;
    return;
  }
  waiting = null;
  turn += 1;
  const mine = turn;
  find("error").textContent = "";
  setStatus("Running …");
  const done = await Promise.all(panels.map((panel) => panel.show(file)));
  if (mine === turn && done.every(Boolean)) setStatus("Done.");
}

onImage(take);
find("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(find("key").value);
  start();
});
const redraw = () => panels.forEach((panel) => panel.draw());
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
start();
