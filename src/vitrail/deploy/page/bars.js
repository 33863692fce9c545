// Classes as bars. Names are text, whatever they contain.

export const percent = (value) => `${(100 * value).toFixed(1)} %`;

export function showBars(list, top) {
  list.replaceChildren(...top.map(({ label, probability, predicted }) => {
    const row = document.createElement("li");
    const [name, value, track, fill] = ["span", "span", "div", "div"].map((tag) => document.createElement(tag));
    name.textContent = label;
    value.textContent = percent(probability);
    track.className = "track";
    fill.className = "fill";
    fill.style.width = `${100 * probability}%`;
    track.append(fill);
    row.append(name, value, track);
    // Of a multi-label model: below its threshold, a class is not predicted.
    row.classList.toggle("below", predicted === false);
    if (predicted === false) row.title = "below the threshold";
    return row;
  }));
}
