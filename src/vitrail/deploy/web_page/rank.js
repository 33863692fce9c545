// Logits to classes: the same order and the same labels as the predictor's.

function softmax(logits) {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (value) => Math.exp(value - most));
  const sum = powers.reduce((total, value) => total + value, 0);
  return powers.map((value) => value / sum);
}

const sigmoid = (logits) => Array.from(logits, (value) => 1 / (1 + Math.exp(-value)));

// What should make one doubt the answer; a calibrated model's logits are followed by a distance.
export function doubt(outputs, about) {
  const found = {};
  const logits = about.held_out ? outputs.subarray(0, outputs.length - 1) : outputs;
  if (about.answered_above !== undefined) {
    found.unsure = !(Math.max(...softmax(logits)) > about.answered_above);
  }
  if (about.held_out) {
    const distance = outputs[outputs.length - 1];
    const nearer = about.held_out.filter((each) => each < distance).length;
    found.ood = nearer / (about.held_out.length + 1);
  }
  return { logits, doubts: found };
}

// The most likely classes; of a multi-label model all that reach their thresholds, and those first.
export function rank(logits, { classes, activation, thresholds, temperature = 1 }, most) {
  if (activation === "none") { // numbers of a regression
    return Array.from(logits, (value, place) => ({ label: classes ? classes[place] : String(place), value }));
  }
  const multilabel = activation === "sigmoid";
  const values = multilabel ? sigmoid(logits) : softmax(logits.map((value) => value / temperature));
  const predicted = values.map((value, place) => multilabel && value >= (thresholds ? thresholds[place] : 0.5));
  const order = values.map((_, place) => place);
  order.sort((a, b) => predicted[b] - predicted[a] || values[b] - values[a] || a - b);
  return order.slice(0, Math.max(most, predicted.filter(Boolean).length)).map((place) => ({
    index: place,
    label: classes ? classes[place] : String(place),
    probability: values[place],
    ...(multilabel ? { predicted: predicted[place] } : {}),
  }));
}
