"use strict";
{
  const steps = Array.from(document.querySelectorAll(".step"));
  const player = document.querySelector(".player");
  const [button, slider, shown] = ["button", "input", "output"].map((name) => player.querySelector(name));
  let timer = null;
  const show = (number) => {
    slider.value = number;
    steps.forEach((step, at) => { step.hidden = at + 1 !== Number(number); });
    shown.value = `step ${number} of ${steps.length}`;
    history.replaceState(null, "", `#step=${number}`);
  };
  const named = () => Number((/^#step=(\d+)$/.exec(location.hash) || [])[1]);
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "\u25b6 Play";
  };
  const advance = () => {
    show(Number(slider.value) + 1);
    if (Number(slider.value) === steps.length) stop();
  };
  slider.addEventListener("input", () => { stop(); show(slider.value); });
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(slider.value) === steps.length) show(1);
    button.textContent = "\u23f8 Pause";
    timer = setInterval(advance, 1000);
  });
  const open = () => {
    const number = named() || steps.length;
    show(Math.min(Math.max(number, 1), steps.length));
  };
  addEventListener("hashchange", open);
  player.hidden = false;
  open();
}
