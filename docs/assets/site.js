// Let keys reach what scrolls sideways, as axe-core asks.
document$.subscribe(() => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, .scrolled")) each.tabIndex = 0;
});
