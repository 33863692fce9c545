// Drawing: the image as the model sees it, a heat map of its patches, and attention distances.

const HEAT = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];
const SIDE = 448;

export function decodeView({ height, width, rgb }) {
  const text = atob(rgb);
  const pixels = new ImageData(width, height);
  for (let from = 0, to = 0; from < text.length; from += 3, to += 4) {
    pixels.data[to] = text.charCodeAt(from);
    pixels.data[to + 1] = text.charCodeAt(from + 1);
    pixels.data[to + 2] = text.charCodeAt(from + 2);
    pixels.data[to + 3] = 255;
  }
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

// The whole image with what the model sees of it framed; false for a file that browsers can't show.
export async function drawWhole(canvas, file, { fit, crop, image }) {
  const whole = await createImageBitmap(file).catch(() => null);
  if (!whole) return false;
  const scale = Math.min(1, 800 / Math.max(whole.width, whole.height));
  canvas.width = Math.max(1, Math.round(whole.width * scale));
  canvas.height = Math.max(1, Math.round(whole.height * scale));
  const pen = canvas.getContext("2d");
  pen.drawImage(whole, 0, 0, canvas.width, canvas.height);
  whole.close();
  const short = (crop * Math.min(canvas.width, canvas.height)) / Math.min(...image);
  const [height, width] = fit === "stretch" ? [crop * canvas.height, crop * canvas.width]
    : image.map((side, k) => Math.min(side * short, k ? canvas.width : canvas.height));
  const [left, top] = [(canvas.width - width) / 2, (canvas.height - height) / 2];
  if (width > canvas.width - 2 && height > canvas.height - 2) return "all";
  const outside = new Path2D();
  outside.rect(0, 0, canvas.width, canvas.height);
  outside.rect(left, top, width, height);
  pen.fillStyle = "rgba(0, 0, 0, 0.5)";
  pen.fill(outside, "evenodd");
  pen.lineWidth = Math.max(1, canvas.width / 200);
  pen.strokeStyle = "#fff";
  pen.strokeRect(left, top, width, height);
  return "center";
}

function color(value) {
  const place = Math.min(Math.max(value, 0), 1) * (HEAT.length - 1);
  const low = Math.min(Math.floor(place), HEAT.length - 2);
  return HEAT[low].map((part, k) => Math.round(part + (place - low) * (HEAT[low + 1][k] - part)));
}

// Values from 0 to 1, so that one very high patch does not hide all others.
export function stretch(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const low = sorted[0];
  const high = sorted[Math.floor(0.98 * (sorted.length - 1))];
  return values.map((value) => (high > low ? Math.min((value - low) / (high - low), 1) : 0));
}

export function drawView(canvas, { view, grid, values, opacity, lines, chosen }) {
  const [rows, columns] = grid;
  canvas.width = SIDE;
  canvas.height = Math.round((SIDE * view.height) / view.width);
  const pen = canvas.getContext("2d");
  pen.drawImage(view, 0, 0, canvas.width, canvas.height);
  const across = canvas.width / columns;
  const down = canvas.height / rows;
  stretch(values).forEach((value, place) => {
    pen.globalAlpha = opacity * (0.4 + 0.6 * value);
    pen.fillStyle = `rgb(${color(value)})`;
    const x = Math.round((place % columns) * across);
    const y = Math.round(Math.floor(place / columns) * down);
    pen.fillRect(x, y, Math.ceil(across), Math.ceil(down));
  });
  pen.globalAlpha = 1;
  if (lines) {
    pen.strokeStyle = "rgba(255, 255, 255, 0.35)";
    pen.beginPath();
    for (let row = 1; row < rows; row += 1) {
      pen.moveTo(0, row * down);
      pen.lineTo(canvas.width, row * down);
    }
    for (let column = 1; column < columns; column += 1) {
      pen.moveTo(column * across, 0);
      pen.lineTo(column * across, canvas.height);
    }
    pen.stroke();
  }
  if (chosen !== null) {
    pen.lineWidth = 3;
    pen.strokeStyle = "#fff";
    pen.strokeRect((chosen % columns) * across, Math.floor(chosen / columns) * down, across, down);
    pen.lineWidth = 1;
    pen.strokeStyle = "#000";
    pen.strokeRect((chosen % columns) * across, Math.floor(chosen / columns) * down, across, down);
  }
}

// One dot per head, layer by layer, as in Figure 7 (right) of the paper.
export function drawDistances(canvas, distances, chosen) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const [ink, line, bar] = ["--soft", "--line", "--bar"].map((name) => style.getPropertyValue(name));
  const [left, right, top, bottom] = [44, 10, 8, 34];
  const most = Math.max(...distances.flat(), 1);
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((each) => most / each <= 6) ?? 1000;
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const x = (layer) => left + ((layer + 0.5) / distances.length) * (width - left - right);
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = ink;
  pen.strokeStyle = line;
  pen.textAlign = "right";
  for (let value = 0; value <= most; value += step) {
    pen.beginPath();
    pen.moveTo(left, y(value));
    pen.lineTo(width - right, y(value));
    pen.stroke();
    pen.fillText(String(Math.round(value)), left - 6, y(value) + 4);
  }
  pen.textAlign = "center";
  const every = Math.ceil(distances.length / 12);
  distances.forEach((heads, layer) => {
    if (layer % every === 0) pen.fillText(String(layer + 1), x(layer), height - bottom + 16);
  });
  pen.fillText("layer", left + (width - left - right) / 2, height - 3);
  pen.save();
  pen.translate(11, top + (height - top - bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText("pixels", 0, 0);
  pen.restore();
  pen.fillStyle = bar;
  distances.forEach((heads, layer) => heads.forEach((value, head) => {
    const current = chosen && chosen.layer === layer && (chosen.head === null || chosen.head === head);
    pen.globalAlpha = current ? 1 : 0.45;
    pen.beginPath();
    pen.arc(x(layer), y(value), current ? 5 : 3.5, 0, 7);
    pen.fill();
  }));
  pen.globalAlpha = 1;
}
