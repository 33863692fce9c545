// How images get in: chosen, photographed, pasted or dropped.

export function onImage(take) {
  for (const name of ["file", "camera"]) {
    document.getElementById(name).addEventListener("change", ({ target }) => {
      take(target.files[0]);
      target.value = "";
    });
  }
  document.addEventListener("paste", ({ clipboardData }) => {
    take([...clipboardData.files][0]);
  });
  const { classList } = document.getElementById("drop");
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    classList.add("over");
  });
  document.addEventListener("dragleave", () => classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
}
