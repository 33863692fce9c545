// Similar pictures: each with its label and its similarity, shown as soon as it is there.

import { askPicture } from "./server.js";

function item({ label, similarity }) {
  const row = document.createElement("li");
  const [canvas, name, value] = ["canvas", "div", "div"].map((tag) => document.createElement(tag));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `a picture of ${label || "no class"}`);
  name.textContent = label;
  value.className = "value";
  value.textContent = `cosine ${similarity.toFixed(3)}`;
  row.append(canvas, name, value);
  return row;
}

export async function listAlike(strip, similar, place, options) {
  const rows = similar.map(item);
  strip.replaceChildren(...rows);
  for (const [number, row] of rows.entries()) {
    const canvas = row.firstChild;
    try {
      const picture = await askPicture(place(similar[number]), options);
      Object.assign(canvas, { width: picture.width, height: picture.height });
      canvas.getContext("2d").drawImage(picture, 0, 0);
    } catch (error) {
      if (options.signal.aborted) return;
      canvas.setAttribute("aria-label", `${canvas.ariaLabel}, which can't be shown: ${error.message}`);
      canvas.title = error.message;
    }
  }
}
