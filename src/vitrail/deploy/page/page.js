// The page: takes an image in, and shows what the models make of it.

import { listen } from "./intake.js";
import { Panel } from "./panel.js";
import { ask, useKey } from "./server.js";

const find = (name) => document.getElementById(name);
let panels = [];
let turn = 0;

function say(text) {
  find("status").textContent = text;
}

function fail(error) {
  if (error.name === "AbortError") return;
  say("");
  find("error").textContent = error.message;
  find("unlock").hidden = error.status !== 401;
}

async function start() {
  find("error").textContent = "";
  try {
    const models = await ask("models", { waiting: say });
    find("unlock").hidden = true;
    const shown = models.slice(0, 2);
    const tools = { wait: say, fail };
    panels = shown.map(({ name }) => new Panel(find("panel"), models, name, tools));
    find("models").replaceChildren(...panels.map((panel) => panel.root));
    say("");
  } catch (error) {
    fail(error);
  }
}

async function take(file) {
  if (!file || !panels.length) return;
  const mine = (turn += 1);
  find("error").textContent = "";
  find("name").textContent = file.name ?? "";
  say("Looking …");
  const done = await Promise.all(panels.map((panel) => panel.show(file)));
  if (mine === turn && done.every(Boolean)) say("Done.");
}

listen(take);
find("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(find("key").value);
  start();
});
const redraw = () => panels.forEach((panel) => panel.draw());
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
start();
