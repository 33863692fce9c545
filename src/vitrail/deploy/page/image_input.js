// How images get in: chosen, photographed, pasted or dropped; several at once come as a list.

export function onImage(take) {
  for (const name of ["file", "camera"]) {
    document.getElementById(name).addEventListener("change", ({ target }) => {
      take([...target.files]);
      target.value = "";
    });
  }
  document.addEventListener("paste", ({ clipboardData }) => {
    take([...clipboardData.files]);
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
    take([...event.dataTransfer.files]);
  });
}
