// Which part of an image is resized to which size, and which part of that is kept: the rule of
// vitrail/data/transforms/geometry.py, number by number.

const STRIP = 16;

// Halves go to the even number, as in Python.
export function round(value) {
  const low = Math.floor(value);
  const rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2 !== 0) ? low + 1 : low;
}

function middle(height, width, size) {
  const most = Math.ceil((STRIP * Math.min(height, width) * Math.max(...size)) / Math.min(...size));
  const [tall, wide] = [Math.min(height, most), Math.min(width, most)];
  return { top: Math.floor((height - tall) / 2), left: Math.floor((width - wide) / 2), height: tall, width: wide };
}

function cover(height, width, size) {
  if (size[0] === size[1]) {
    const long = Math.floor((size[0] * Math.max(height, width)) / Math.min(height, width));
    return width <= height ? [long, size[0]] : [size[0], long];
  }
  const ratio = Math.min(height / size[0], width / size[1]);
  return [round(height / ratio), round(width / ratio)];
}

// In float32, TensorFlow's type, which decides ties.
function coverSmall(height, width, size) {
  const { fround } = Math;
  const factor = Math.max(fround(size[0] / height), fround(size[1] / width));
  return [round(fround(height * factor)), round(fround(width * factor))];
}

export function fit(height, width, preprocess) {
  const [rows, columns] = preprocess.size;
  const large = preprocess.size.map((side) => side / preprocess.crop + 1e-6);
  const inside = ([tall, wide], half) => (
    { top: half((tall - rows) / 2), left: half((wide - columns) / 2), height: rows, width: columns }
  );
  if (preprocess.fit === "stretch") {
    const size = large.map(round);
    return { before: { top: 0, left: 0, height, width }, size, after: inside(size, Math.floor) };
  }
  const before = middle(height, width, preprocess.size);
  const small = preprocess.fit === "small";
  const size = small ? coverSmall(before.height, before.width, large.map(round))
    : cover(before.height, before.width, large.map(Math.floor));
  const down = small || preprocess.center === "floor";
  return { before, size, after: inside(size, down ? Math.floor : round) };
}
