//! Tests of the page in headless Chromium: light and dark, with phone and desktop widths.
//!
//! Skipped with a message if Chromium is missing (`scripts/setup.sh report` installs it). `TANDEMFS_REPORT_SHOTS=DIRECTORY` saves the page
//! and screenshots.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{PAGE, RESULTS, html, results, sample, write};

/// Widths of a phone and of a desktop.
const WIDTHS: [u32; 2] = [390, 1280];
const HEIGHT: u32 = 844;
/// A browser that runs longer is killed.
const PATIENCE: Duration = Duration::from_secs(300);

/// Script of a page around the report. It shows the report in a frame of the tested width, since a window has a minimum width, and writes
/// its findings into itself. The report is not changed.
const QUESTIONS: &str = r"
const frame = document.querySelector('iframe');
frame.addEventListener('load', () => {
  const report = frame.contentDocument, found = [];
  const root = report.documentElement;
  report.querySelectorAll('details').forEach(fold => { fold.open = true; });
  if (root.scrollWidth > root.clientWidth) found.push('wider than its window: ' + root.scrollWidth + ' of ' + root.clientWidth);
  const plots = [...report.querySelectorAll('svg')];
  for (const plot of plots) {
    const box = plot.getBoundingClientRect(), name = plot.getAttribute('aria-label');
    if (!(box.width > 100 && box.height > 50)) found.push(name + ': not drawn, ' + box.width + ' x ' + box.height);
    if (box.right > root.clientWidth + 1) found.push(name + ': leaves the window');
    const shapes = plot.querySelectorAll('rect, line, polyline, circle');
    if (shapes.length === 0) found.push(name + ': empty');
    for (const shape of shapes) {
      const bounds = shape.getBBox();
      if (![bounds.x, bounds.y, bounds.width, bounds.height].every(Number.isFinite)) found.push(name + ': not finite');
    }
    const view = plot.viewBox.baseVal;
    for (const text of plot.querySelectorAll('text')) {
      const bounds = text.getBBox();
      if (bounds.x < -2 || bounds.x + bounds.width > view.width + 2) found.push(name + ': cuts off the words ' + text.textContent.trim());
    }
    const letters = plot.querySelector('text');
    if (letters && frame.contentWindow.getComputedStyle(letters).fill !== frame.contentWindow.getComputedStyle(plot).color) found.push(name + ': letters of another colour');
  }
  const style = frame.contentWindow.getComputedStyle(root);
  const answer = document.createElement('pre');
  answer.id = 'answer';
  answer.textContent = JSON.stringify({ found, plots: plots.length, width: root.clientWidth, ground: style.backgroundColor, ink: style.color });
  document.body.append(answer);
});
";

/// Finds the browser. If there is none, writes a message to standard error directly, since output of passing tests is hidden.
fn browser(test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&path).flat_map(|directory| names.map(|name| directory.join(name))).find(|program| program.is_file());
    if found.is_none() {
        let sentence = format!("SKIPPED {test}: no chromium is installed; scripts/setup.sh report installs it\n");
        std::io::stderr().write_all(sentence.as_bytes()).expect("standard error");
    }
    found
}

/// Runs the browser on a page. Returns its output and its error output.
fn run(browser: &Path, directory: &Path, page: &Path, is_dark: bool, more: &[String]) -> (String, String) {
    let profile = tempfile::tempdir_in(directory).expect("a directory");
    let (out, errors) = (profile.path().join("out"), profile.path().join("errors"));
    let file = |path: &Path| Stdio::from(fs::File::create(path).expect("a file"));
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr"])
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark)))
        .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
        .args(more)
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .stdout(file(&out))
        .stderr(file(&errors))
        .spawn()
        .expect("a browser");
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > PATIENCE {
            let _it_may_have_ended = child.kill();
            child.wait().expect("a child");
            panic!("the browser did not end: {}", fs::read_to_string(&errors).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    (fs::read_to_string(out).expect("read"), fs::read_to_string(errors).expect("read"))
}

/// Lines of a page's console.
fn console(errors: &str) -> Vec<&str> {
    errors.lines().filter(|line| line.contains("CONSOLE")).collect()
}

#[test]
fn the_page_is_drawn_in_light_and_dark_on_a_phone_and_on_a_desk() {
    let Some(browser) = browser("the_page_is_drawn_in_light_and_dark_on_a_phone_and_on_a_desk") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let results = directory.join(RESULTS);
    fs::write(&results, results::tests::lines(&sample::header(), &sample::records())).expect("written");
    write(&results, directory).unwrap_or_else(|failure| panic!("{failure}"));
    let (page, content) = (directory.join(PAGE), fs::read_to_string(directory.join(PAGE)).expect("read"));
    let shots = std::env::var_os("TANDEMFS_REPORT_SHOTS").map(PathBuf::from);
    if let Some(shots) = &shots {
        fs::copy(&page, shots.join(PAGE)).expect("copied");
    }
    let mut grounds = Vec::new();
    for is_dark in [false, true] {
        for width in WIDTHS {
            let around = directory.join(format!("around-{width}.html"));
            let frame =
                format!("<iframe style=\"border:0;width:{width}px;height:{HEIGHT}px\" srcdoc=\"{}\"></iframe>", html::escaped(&content));
            let text = format!(
                "<!DOCTYPE html><html><head><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\"></head><body style=\"margin:0\">{frame}<script>{QUESTIONS}</script></body></html>"
            );
            fs::write(&around, text).expect("written");
            let (dom, errors) =
                run(&browser, directory, &around, is_dark, &["--dump-dom".to_owned(), "--virtual-time-budget=20000".to_owned()]);
            assert_eq!(console(&errors), Vec::<&str>::new());
            let answer = dom.split("<pre id=\"answer\">").nth(1).and_then(|rest| rest.split("</pre>").next());
            let answer =
                answer.unwrap_or_else(|| panic!("no answer: {errors}")).replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
            let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
            assert_eq!(answer["found"], serde_json::json!([]), "{width} wide");
            assert!(answer["width"] == width && answer["plots"].as_u64() > Some(30), "{answer}");
            grounds.push((is_dark, answer["ground"].to_string(), answer["ink"].to_string()));
            if let Some(shots) = &shots {
                let scheme = if is_dark { "dark" } else { "light" };
                let picture = shots.join(format!("{scheme}-{width}.png"));
                let options = [format!("--screenshot={}", picture.display()), format!("--window-size={width},{HEIGHT}")];
                run(&browser, directory, &around, is_dark, &options);
            }
        }
    }
    let is_of_its_form = |(is_dark, ground, ink): &(bool, String, String)| {
        let (light, dark) = ("\"rgb(255, 255, 255)\"", "\"rgb(20, 23, 26)\"");
        ground == if *is_dark { dark } else { light } && ground != ink
    };
    assert!(grounds.iter().all(is_of_its_form), "{grounds:?}");
    // The page alone, under its own policy.
    let (_, errors) = run(&browser, directory, &page, false, &["--dump-dom".to_owned()]);
    assert_eq!(console(&errors), Vec::<&str>::new());
}

#[test]
fn the_questions_find_what_is_wrong() {
    let Some(browser) = browser("the_questions_find_what_is_wrong") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let bad = "<html><body><div style='width:900px'>wide</div><svg aria-label='empty' viewBox='0 0 9 9' style='width:200px;height:90px'></svg>\
               <svg aria-label='small' viewBox='0 0 9 9' width='5' height='5'><rect width='3' height='3'/></svg>\
               <svg aria-label='cut' viewBox='0 0 9 9' width='200' height='90'><rect width='3' height='3'/><text fill='red'>words</text></svg></body></html>";
    let around = directory.path().join("around.html");
    let frame = format!("<iframe style=\"width:390px\" srcdoc=\"{}\"></iframe>", html::escaped(bad));
    fs::write(&around, format!("<html><body>{frame}<script>{QUESTIONS}console.error('said')</script></body></html>")).expect("written");
    let (dom, errors) =
        run(&browser, directory.path(), &around, false, &["--dump-dom".to_owned(), "--virtual-time-budget=5000".to_owned()]);
    for sentence in
        ["wider than its window", "empty: empty", "small: not drawn", "cut: cuts off the words words", "cut: letters of another colour"]
    {
        assert!(dom.contains(sentence), "{sentence}: {dom}");
    }
    assert_eq!(console(&errors).len(), 1, "{errors}");
}
