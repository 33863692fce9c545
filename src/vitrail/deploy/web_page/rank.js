// Logits to classes: the same order and the same labels as the predictor's.

function softmax(logits) {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (value) => Math.exp(value - most));
  const sum = powers.reduce((total, value) => total + value, 0);
  return powers.map((value) => value / sum);
}

const sigmoid = (logits) => Array.from(logits, (value) => 1 / (1 + Math.exp(-value)));

// The most likely classes; of a multi-label model all that reach their thresholds, and those first.
export function rank(logits, { classes, activation, thresholds }, most) {
  const multilabel = activation === "sigmoid";
  const values = multilabel ? sigmoid(logits) : softmax(logits);
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
