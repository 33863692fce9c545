// Classes as bars. Names are text, whatever they contain.

export const percent = (value) => `${(100 * value).toFixed(1)} %`;

// A number that a regression predicts has no bar.
function makeValue({ label, value }) {
  const row = document.createElement("li");
  const [name, number] = [makeBreakable(label), document.createElement("span")];
  number.textContent = showNumber(value);
  row.append(name, number);
  return row;
}

export const showNumber = (value) => String(Number(value.toPrecision(4)));

export const asRows = (values) => Object.entries(values).map(([label, value]) => ({ label, value }));

// A long name may break after an underscore rather than within a word.
function makeBreakable(text) {
  const span = document.createElement("span");
  span.append(...text.split(/(?<=[_/])/).flatMap((piece) => [document.createElement("wbr"), piece]).slice(1));
  return span;
}

function makeBar({ label, probability, predicted }) {
  const row = document.createElement("li");
  const name = makeBreakable(label);
  const [value, track, fill] = ["span", "div", "div"].map((tag) => document.createElement(tag));
  value.textContent = percent(probability);
  track.className = "track";
  fill.className = "fill";
  fill.style.width = `${100 * probability}%`;
  track.append(fill);
  row.append(name, value, track);
  row.classList.toggle("below", predicted === false); // its threshold, in a multi-label model
  return row;
}

const FLAGGED = 0.95; // as in evaluation/uncertainty/novelty.py

function sayDoubts({ unsure, ood }) {
  const said = unsure ? ["Unsure: none of these is certain enough."] : [];
  if (ood >= FLAGGED) said.push("Unlike the images that the model was trained on.");
  return said.join(" ");
}

// A multi-label model's labels are said in a line above, and so is why to doubt an answer.
export function showBars(panel, top, doubts = {}) {
  const labels = top.filter(({ predicted }) => predicted).map(({ label }) => label);
  const multilabel = top.some(({ predicted }) => predicted !== undefined);
  const line = labels.length ? `Labels: ${labels.join(" · ")}` : "No class reaches its threshold.";
  panel.querySelector(".labels").textContent = multilabel ? line : sayDoubts(doubts);
  panel.querySelector(".bars").replaceChildren(...top.map((each) => (each.value === undefined ? makeBar(each) : makeValue(each))));
}
