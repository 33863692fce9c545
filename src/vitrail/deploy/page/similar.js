// Similar images: each with its label and similarity, shown as soon as it is loaded.

import { fetchImage } from "./api.js";

function makeItem({ label, similarity }) {
  const row = document.createElement("li");
  const [canvas, name, value] = ["canvas", "div", "div"].map((tag) => document.createElement(tag));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `an image of ${label || "no class"}`);
  name.textContent = label;
  value.className = "value";
  value.textContent = `cosine ${similarity.toFixed(3)}`;
  row.append(canvas, name, value);
  return row;
}

export async function showSimilar(strip, similar, urlOf, options) {
  const rows = similar.map(makeItem);
  strip.replaceChildren(...rows);
  for (const [number, row] of rows.entries()) {
    const canvas = row.firstChild;
    try {
      const image = await fetchImage(urlOf(similar[number]), options);
      Object.assign(canvas, { width: image.width, height: image.height });
      canvas.getContext("2d").drawImage(image, 0, 0);
    } catch (error) {
      if (options.signal.aborted) return;
      canvas.setAttribute("aria-label", `${canvas.ariaLabel}, which can't be shown: ${error.message}`);
      canvas.title = error.message;
    }
  }
}
