/* Runs before the first paint, so that a chosen theme does not flash. Unset means: as the system has it. */
try {
  const theme = JSON.parse(localStorage.getItem("quern.theme"));
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // no storage: the system's theme
}
