// Resizing, bit for bit as vitrail/data/transforms/resizing.py: like Pillow, or without
// antialiasing like TensorFlow.

import { round } from "./geometry.js";

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
const KERNELS = {
  area: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)],
  bilinear: [1, (x) => Math.max(1 - Math.abs(x), 0)],
  bicubic: [2, (x) => {
    const away = Math.abs(x);
    if (away < 1) return (1.5 * away - 2.5) * away * away + 1;
    return away < 2 ? ((2.5 - 0.5 * away) * away - 4) * away + 2 : 0;
  }],
  lanczos: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};
const BITS = 22; // of a weight's fraction in Pillow

const clamp = (value) => Math.min(Math.max(value, 0), 255);
const normalized = (weights) => {
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
};

// For each new pixel: the first old one that counts, and the weights from there on.
function averaged(length, count, [reach, kernel]) {
  const scale = length / count;
  const wide = Math.max(scale, 1);
  return Array.from({ length: count }, (_, place) => {
    const center = (place + 0.5) * scale;
    const first = Math.max(Math.trunc(center - reach * wide + 0.5), 0);
    const last = Math.min(Math.trunc(center + reach * wide + 0.5), length);
    const weights = normalized(
      Array.from({ length: last - first }, (__, k) => kernel((first + k - center + 0.5) / wide)),
    );
    return { first, weights: weights.map((weight) => Math.trunc(weight * 2 ** BITS + (weight < 0 ? -0.5 : 0.5))) };
  });
}

function sampled(length, count, [reach, kernel]) {
  return Array.from({ length: count }, (_, place) => {
    const center = (place + 0.5) * (length / count) - 0.5;
    const first = Math.max(Math.floor(center) + 1 - reach, 0);
    const last = Math.min(Math.floor(center) + reach, length - 1);
    const weights = Array.from({ length: last - first + 1 }, (__, k) => kernel(center - first - k));
    return { first, weights: normalized(weights).map(Math.fround) };
  });
}

function covered(length, count) {
  const scale = length / count;
  return Array.from({ length: count }, (_, place) => {
    const [from, to] = [place * scale, Math.min((place + 1) * scale, length)];
    const first = Math.floor(from);
    const weights = Array.from({ length: Math.ceil(to) - first }, (__, k) => (
      (Math.min(first + k + 1, to) - Math.max(first + k, from)) / scale
    ));
    return { first, weights };
  });
}

// One axis of [before, axis, after], with its values kept in another kind of array.
function pass(values, [outer, length, inner], taps, Kept, add, finish) {
  const result = new Kept(outer * taps.length * inner);
  let to = 0;
  for (let row = 0; row < outer; row += 1) {
    for (const { first, weights } of taps) {
      const start = (row * length + first) * inner;
      for (let k = 0; k < inner; k += 1) {
        let sum = 0;
        for (let tap = 0, from = start + k; tap < weights.length; tap += 1, from += inner) {
          sum = add(sum, values[from], weights[tap]);
        }
        result[to] = finish(sum);
        to += 1;
      }
    }
  }
  return result;
}

function likePillow(pixels, [height, width], [tall, wide], channels, kernel) {
  const add = (sum, value, weight) => sum + value * weight;
  const finish = (sum) => clamp((sum + 2 ** (BITS - 1)) >> BITS);
  let values = pixels;
  if (wide !== width) {
    const taps = averaged(width, wide, kernel);
    values = pass(values, [height, width, channels], taps, Uint8Array, add, finish);
  }
  if (tall !== height) {
    const taps = averaged(height, tall, kernel);
    values = pass(values, [1, height, wide * channels], taps, Uint8Array, add, finish);
  }
  return values;
}

function likeTensorFlow(pixels, [height, width], [tall, wide], channels, name) {
  const exact = name === "area";
  const Kept = exact ? Float64Array : Float32Array;
  const { fround } = Math;
  const add = exact ? (sum, value, weight) => sum + value * weight
    : (sum, value, weight) => fround(sum + fround(value * weight));
  const taps = (length, count) => (exact ? covered(length, count) : sampled(length, count, KERNELS[name]));
  const down = pass(pixels, [1, height, width * channels], taps(height, tall), Kept, add, (sum) => sum);
  const finish = (sum) => clamp(round(sum));
  return pass(down, [tall, width, channels], taps(width, wide), Uint8Array, add, finish);
}

// Pillow goes from pixel to pixel by adding up, and so must we.
function nearest(pixels, [height, width], [tall, wide], channels) {
  const places = (length, count) => {
    let place = (0.5 * length) / count;
    return Array.from({ length: count }, () => {
      const found = Math.trunc(place);
      place += length / count;
      return Math.min(found, length - 1);
    });
  };
  const result = new Uint8Array(tall * wide * channels);
  const columns = places(width, wide);
  let to = 0;
  for (const row of places(height, tall)) {
    for (const column of columns) {
      const from = (row * width + column) * channels;
      for (let k = 0; k < channels; k += 1) result[to + k] = pixels[from + k];
      to += channels;
    }
  }
  return result;
}

export function resize(pixels, from, to, channels, { interpolation, antialias }) {
  if (from[0] === to[0] && from[1] === to[1]) return pixels;
  if (interpolation === "nearest") return nearest(pixels, from, to, channels);
  if (antialias) return likePillow(pixels, from, to, channels, KERNELS[interpolation]);
  return likeTensorFlow(pixels, from, to, channels, interpolation);
}
