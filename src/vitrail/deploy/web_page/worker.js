// The model at work, beside the page, so that this stays at hand.

import * as ort from "./onnxruntime.js";
import { prepare } from "./prepare.js";

const TOP = 5;
const tell = (kind, rest = {}) => postMessage({ kind, ...rest });

async function get(name) {
  const answer = await fetch(name).catch(() => null);
  if (!answer?.ok) throw new Error(`${name} could not be loaded${answer ? ` (${answer.status})` : ""}.`);
  return answer;
}

// Files whose sizes are known, as one download.
async function download(sizes) {
  const total = Object.values(sizes).reduce((sum, size) => sum + size, 0);
  let done = 0;
  return Promise.all(Object.entries(sizes).map(async ([name, size]) => {
    const data = new Uint8Array(size);
    let place = 0;
    const reader = (await get(name)).body.getReader();
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      if (place + piece.value.length > size) break;
      data.set(piece.value, place);
      place += piece.value.length;
      done += piece.value.length;
      tell("loading", { percent: Math.floor((100 * done) / total) });
    }
    if (place !== size) throw new Error(`${name} is not whole; upload the folder again.`);
    return data;
  }));
}

async function open() {
  const about = await (await get("model.json")).json();
  tell("about", about);
  const [model, wasm] = await download(about.bytes);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = wasm.buffer;
  const session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
  tell("ready");
  return { about, session };
}

function rank(logits, classes) {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (value) => Math.exp(value - most));
  const sum = powers.reduce((total, value) => total + value, 0);
  const order = powers.map((_, place) => place).sort((a, b) => powers[b] - powers[a] || a - b);
  return order.slice(0, TOP).map((place) => ({
    index: place, label: classes ? classes[place] : String(place), probability: powers[place] / sum,
  }));
}

// Colors for the eye, of a model that may see gray.
function show(pixels, [height, width], channels) {
  const seen = new ImageData(width, height);
  for (let place = 0; place < height * width; place += 1) {
    for (let k = 0; k < 3; k += 1) seen.data[4 * place + k] = pixels[place * channels + (channels === 3 ? k : 0)];
    seen.data[4 * place + 3] = 255;
  }
  return seen;
}

const opened = open();
opened.catch((error) => tell("broken", { text: error.message }));

let last = opened.catch(() => null);
addEventListener("message", ({ data: { number, file } }) => {
  last = last.then(async (found) => {
    if (!found) return null;
    const { about: { classes, preprocess }, session } = found;
    try {
      const start = performance.now();
      const pixels = await prepare(file, preprocess);
      const channels = preprocess.mean.length;
      const input = new ort.Tensor("uint8", pixels, [1, ...preprocess.size, channels]);
      const { logits } = await session.run({ images: input });
      const milliseconds = Math.round(performance.now() - start);
      const seen = show(pixels, preprocess.size, channels);
      tell("answer", { number, top: rank(logits.data, classes), seen, milliseconds });
    } catch (error) {
      tell("refused", { number, text: error.message });
    }
    return found;
  });
});
