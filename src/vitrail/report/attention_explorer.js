"use strict";
// Sliders for layer and head: draws one attention map over its image, with the colors of the served page.
const HEAT = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];

function color(value) {
  const place = value * (HEAT.length - 1);
  const low = Math.min(Math.floor(place), HEAT.length - 2);
  return "rgb(" + HEAT[low].map((part, k) => Math.round(part + (place - low) * (HEAT[low + 1][k] - part))) + ")";
}

for (const box of document.querySelectorAll(".explorer")) {
  const [layers, heads, rows, columns] = box.dataset.shape.split(",").map(Number);
  const maps = Uint8Array.from(atob(box.dataset.maps), (letter) => letter.charCodeAt(0));
  const photo = box.querySelector("img");
  const canvas = document.createElement("canvas");
  const [layer, head] = box.querySelectorAll("input");
  const outputs = box.querySelectorAll("output");
  const size = rows * columns;

  function draw() {
    const start = ((Number(layer.value) - 1) * (heads + 1) + Number(head.value)) * size; // map 0 is the mean of the heads
    const values = maps.subarray(start, start + size);
    outputs[0].textContent = layer.value + " of " + layers;
    outputs[1].textContent = head.value === "0" ? "mean of all " + heads : head.value + " of " + heads;
    layer.setAttribute("aria-valuetext", outputs[0].textContent);
    head.setAttribute("aria-valuetext", outputs[1].textContent);
    canvas.width = 448;
    canvas.height = Math.round((448 * photo.naturalHeight) / photo.naturalWidth);
    const pen = canvas.getContext("2d");
    pen.drawImage(photo, 0, 0, canvas.width, canvas.height);
    const [across, down] = [canvas.width / columns, canvas.height / rows];
    values.forEach((value, place) => {
      pen.globalAlpha = 0.3 + (0.5 * value) / 255;
      pen.fillStyle = color(value / 255);
      const [x, y] = [Math.round((place % columns) * across), Math.round(Math.floor(place / columns) * down)];
      pen.fillRect(x, y, Math.round((place % columns + 1) * across) - x, Math.round((Math.floor(place / columns) + 1) * down) - y);
    });
    const best = values.indexOf(Math.max(...values));
    const where = "row " + (Math.floor(best / columns) + 1) + " of " + rows + ", column " + (best % columns + 1) + " of " + columns;
    canvas.setAttribute("aria-label", "Attention in layer " + outputs[0].textContent + ", head " + outputs[1].textContent + ": most on the patch in " + where);
  }

  canvas.setAttribute("role", "img");
  photo.decode().then(() => {
    photo.replaceWith(canvas);
    box.querySelector(".controls").hidden = false;
    for (const slider of [layer, head]) slider.addEventListener("input", draw);
    draw();
  });
}
