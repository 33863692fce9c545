// A model in plain words, from its name in the grammar of models.

export function describeModel(model, kinds, height, width) {
  const [short] = model.split(",");
  const hybrid = short.includes("+") || short.startsWith("Hybrid");
  const what = short.startsWith("BiT") ? "ResNet" : hybrid ? "Hybrid of ResNet and Vision Transformer" : "Vision Transformer";
  return `${what} ${short}, ${kinds}, sees ${width} x ${height} pixels`;
}
