// Runs the model in a worker, so that the page stays responsive.

import * as ort from "./onnxruntime.js";
import { preprocess } from "./preprocess.js";
import { doubt, rank } from "./rank.js";

const TOP = 5;
const send = (kind, rest = {}) => postMessage({ kind, ...rest });

async function get(name) {
  const response = await fetch(name).catch(() => null);
  if (!response?.ok) throw new Error(`${name} could not be loaded${response ? ` (${response.status})` : ""}.`);
  return response;
}

// Download files of known sizes, with one progress.
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
      send("loading", { percent: Math.floor((100 * done) / total) });
    }
    if (place !== size) throw new Error(`${name} is incomplete; upload the folder again.`);
    return data;
  }));
}

async function open() {
  const about = await (await get("model.json")).json();
  send("about", about);
  const [model, wasm] = await download(about.bytes);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = wasm.buffer;
  const session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
  send("ready");
  return { about, session };
}

// The model's input as an image; it may be gray.
function show(pixels, [height, width], channels) {
  const seen = new ImageData(width, height);
  for (let place = 0; place < height * width; place += 1) {
    for (let k = 0; k < 3; k += 1) seen.data[4 * place + k] = pixels[place * channels + (channels === 3 ? k : 0)];
    seen.data[4 * place + 3] = 255;
  }
  return seen;
}

const opened = open();
opened.catch((error) => send("broken", { text: error.message }));

let last = opened.catch(() => null);
addEventListener("message", ({ data: { number, file } }) => {
  last = last.then(async (found) => {
    if (!found) return null;
    const { about, session } = found;
    const { size, mean } = about.preprocess;
    try {
      const start = performance.now();
      const pixels = await preprocess(file, about.preprocess);
      const channels = mean.length;
      const input = new ort.Tensor("uint8", pixels, [1, ...size, channels]);
      const outputs = (await session.run({ images: input })).logits.data;
      const { logits, doubts } = doubt(outputs, about);
      const milliseconds = Math.round(performance.now() - start);
      const seen = show(pixels, size, channels);
      send("prediction", { number, top: rank(logits, about, TOP), doubts, seen, milliseconds });
    } catch (error) {
      send("refused", { number, text: error.message });
    }
    return found;
  });
});
