// From a file to the model's input: the same pixels as vitrail's own preprocessing.

import { fit } from "./geometry.js";
import { resize } from "./resize.js";

const BAND = 1 << 20; // pixels per canvas; some browsers can't make large ones

// Upright, without the file's color profile, on a white background.
async function decode(file) {
  try {
    return await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    const name = file.type && !file.type.startsWith("image/") ? ` (${file.type})` : "";
    throw new Error(`This is not an image that the browser can read${name}.`);
  }
}

function read(bitmap, box, channels) {
  const pixels = new Uint8Array(box.height * box.width * channels);
  const rows = Math.min(Math.max(1, Math.floor(BAND / box.width)), box.height);
  const pen = new OffscreenCanvas(box.width, rows).getContext("2d", { willReadFrequently: true });
  let to = 0;
  for (let row = 0; row < box.height; row += rows) {
    const count = Math.min(rows, box.height - row);
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, box.width, count);
    const from = [box.left, box.top + row, box.width, count];
    pen.drawImage(bitmap, ...from, 0, 0, box.width, count);
    const { data } = pen.getImageData(0, 0, box.width, count);
    for (let place = 0; place < data.length; place += 4) {
      const [red, green, blue] = [data[place], data[place + 1], data[place + 2]];
      if (channels === 1) {
        pixels[to] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16; // Pillow's gray
      } else {
        pixels[to] = red;
        pixels[to + 1] = green;
        pixels[to + 2] = blue;
      }
      to += channels;
    }
  }
  return pixels;
}

export function fitPixels(pixels, height, width, config) {
  const channels = config.mean.length;
  const { before, size, after } = fit(height, width, config);
  const resized = resize(pixels, [before.height, before.width], size, channels, config);
  const kept = new Uint8Array(after.height * after.width * channels);
  for (let row = 0; row < after.height; row += 1) {
    const from = ((after.top + row) * size[1] + after.left) * channels;
    kept.set(resized.subarray(from, from + after.width * channels), row * after.width * channels);
  }
  return kept;
}

export async function preprocess(file, config) {
  const bitmap = await decode(file);
  const { height, width } = bitmap;
  const pixels = read(bitmap, fit(height, width, config).before, config.mean.length);
  bitmap.close();
  return fitPixels(pixels, height, width, config);
}
