//! `trainer report`: the page, its inputs, and its look in a browser.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::{Folder, expect, logged_steps, mpi_folder, output_of, printed, run, wait_for};

fn report(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.arg("report").args(arguments).current_dir(folder);
    command
}

/// The page about these runs.
fn page(folder: &Path, runs: &[&str]) -> String {
    let output = report(folder, &[runs, &["--output", "page.html"]].concat()).output().unwrap();
    expect(&output, 0, &["page.html: ", "step"]);
    fs::read_to_string(folder.join("page.html")).unwrap()
}

/// The data that the page's script draws.
fn data(page: &str) -> Value {
    let start = "<script type=\"application/json\" id=\"data\">";
    let (_, rest) = page.split_once(start).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// A section of the page.
fn section<'p>(page: &'p str, id: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("<section id=\"{id}\"")).unwrap_or_else(|| panic!("no section {id}"));
    rest.split("</section>").next().unwrap()
}

/// A run of two pipeline stages that was started twice, with graphs, a timeline and a graph report, in `log`.
fn pipeline_run(folder: &Folder) {
    let flags = |steps: usize| {
        let made = ["trace.json", "graphs.json"].map(|name| folder.path("log").join(name).display().to_string());
        format!(
            "--steps {steps} --layers 2 --pipeline-model-parallel-size 2 --enable-cuda-graph --save-interval 3 \
             --trace {} --graph-report {}",
            made[0], made[1]
        )
    };
    expect(&run(2, &folder.0, &flags(4)), 0, &[]);
    expect(&run(2, &folder.0, &flags(8)), 0, &["continues "]);
}

/// A short run on one rank in `folder/NAME/log`.
fn short_run(folder: &Folder, name: &str, flags: &str) {
    fs::create_dir(folder.path(name)).unwrap();
    expect(&run(1, &folder.path(name), flags), 0, &[]);
}

/// A folder with the files of a run that were written by hand.
fn written_run(folder: &Path, metrics: &str, config: &str, messages: &[(&str, &str)]) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("metrics.jsonl"), metrics).unwrap();
    fs::write(folder.join("config.toml"), config).unwrap();
    let line = |(level, message): &(&str, &str)| {
        json!({ "timestamp": "2026-01-01T00:00:00Z", "level": level, "fields": { "message": message } }).to_string()
            + "\n"
    };
    fs::write(folder.join("rank-0.jsonl"), messages.iter().map(line).collect::<String>()).unwrap();
}

const STARTS: (&str, &str) = ("INFO", "trainer 0.1.0 starts as process 7: [\"trainer\"]");

#[test]
fn a_page_shows_everything_that_its_runs_wrote_and_says_how_the_rest_is_made() {
    let folder = Folder::new("report-page");
    pipeline_run(&folder);
    short_run(&folder, "other", "--steps 5 --lr 0.01");
    let page = page(&folder.0, &["log", "other/log"]);

    // Every step of every run is there, with the numbers of its metrics.
    let drawn = data(&page);
    assert_eq!(drawn["runs"], json!(["log", "other/log"]));
    for (at, log) in ["log", "other/log"].into_iter().enumerate() {
        let rows = logged_steps(&folder.path(log));
        for (curve, key) in [("loss", "loss"), ("lr", "lr"), ("norm", "grad_norm"), ("throughput", "tokens_per_s")] {
            let drawn = drawn["curves"][curve][at][1].as_array().unwrap();
            assert_eq!(drawn.len(), rows.len(), "{log}: {curve}");
            for (value, row) in drawn.iter().zip(&rows) {
                let (value, row) = (value.as_f64().unwrap(), row[key].as_f64().unwrap());
                assert!((value - row).abs() <= 1e-12 * row.abs(), "{log}: {curve}: {value} and {row}");
            }
        }
        let evaluated: Vec<&Value> =
            rows.iter().filter(|row| row.get("validation_loss").is_some()).map(|row| &row["step"]).collect();
        assert!(!evaluated.is_empty());
        assert_eq!(drawn["curves"]["validation"][at][0], json!(evaluated), "{log}");
    }

    let options = section(&page, "options").split("</table>").next().unwrap();
    assert!(options.contains("<th scope=\"row\">optimizer.lr</th>") && options.contains("<td>0.01</td>"), "{options}");
    assert!(!options.contains("model.hidden"), "what the runs share is not listed: {options}");

    // Each stage's graphs and memory, by the graph report.
    let report: Value = serde_json::from_slice(&fs::read(folder.path("log/graphs.json")).unwrap()).unwrap();
    let (graphs, memory) = (section(&page, "graphs"), section(&page, "memory-plan"));
    for rank in 0..2 {
        let report = &report["ranks"][rank];
        let step = report["steps"].as_array().unwrap().iter().find(|step| step["mode"] == "Train").unwrap();
        let launches = step["order"].as_array().unwrap();
        let replayed = launches.iter().filter(|launch| launch["graph"].is_u64()).count();
        assert!(graphs.contains(&format!("launched {replayed} times a step")), "{replayed} of rank {rank}");
        let drawing =
            memory.split("<figure ").find(|part| part.starts_with(&format!("id=\"memory-0-{rank}\""))).unwrap();
        let running = launches.iter().filter(|launch| launch["end"].as_u64() > launch["start"].as_u64()).count();
        let buffers = step["buffers"].as_array().unwrap().len();
        assert!(buffers > 20, "{buffers}");
        assert_eq!(drawing.matches("class=\"mark ").count(), buffers + running, "rank {rank}");
    }
    assert!(graphs.contains("it meets transfers between stages"), "{graphs}");
    assert!(graphs.contains("<code>--graph-report FILE</code>"), "the other run has none");

    // The measured step of both ranks, and the ideal of both stages: 4 microbatches forward and backward on each.
    let timeline = section(&page, "timeline");
    for stage in 0..2 {
        assert_eq!(timeline.matches(&format!("<title>ideal of stage {stage}: ")).count(), 2 * 4, "{timeline}");
        assert!(timeline.contains(&format!("<title>rank {stage}: forward of microbatch 3, ")), "rank {stage}");
    }
    assert!(timeline.contains("<code>--trace FILE</code>"), "the other run has none");
    let operations = section(&page, "operations");
    assert!(["gemm", "attention_backward", "receive"].iter().all(|name| operations.contains(&format!(">{name}</th>"))));

    let events = section(&page, "events");
    for part in ["<td>start</td>", "<td>restart</td>", "checkpoint after step 3: ", "continues ", "done: loss "] {
        assert!(events.contains(part), "{part} is not in {events}");
    }
}

#[test]
fn a_page_loads_nothing_and_is_about_any_text_that_files_hold() {
    let folder = Folder::new("report-hostile");
    let bad = "</script><script>alert(1)</script><img src=\"http://example.com/x\" onerror=alert(2)>";
    let name = "log <img src=x>";
    let config = format!("[train]\nsteps = 3\n[data]\npath = {}\n", json!([bad]));
    let broken = ("ERROR", bad);
    written_run(
        &folder.path(name),
        &format!("{bad}\n{{\"step\":1,\"loss\":2.0}}\n"),
        &config,
        &[STARTS, broken, ("INFO", &format!("graphs: {bad}"))],
    );
    written_run(&folder.path("plain"), "{\"step\":1,\"loss\":2.0}\n", "", &[STARTS]);
    let (page, plain) = (page(&folder.0, &[name]), page(&folder.0, &["plain"]));
    assert!(
        page.contains("1 line of metrics.jsonl could not be read")
            && page.contains("&lt;img src=&quot;http://example.com")
    );
    assert!(section(&page, "overview").contains("<td>failed</td>"));
    // The page's own scripts end at the same places as without this text, and there is no other tag.
    for tag in ["<script", "</script", "<img", "<link", "<iframe", "@import", " src=", "url("] {
        let own = if tag.ends_with("script") { 3 } else { 0 };
        let text = page.replace("&lt;img src=", "").replace("\\u003cimg src=", "");
        assert_eq!((text.matches(tag).count(), plain.matches(tag).count()), (own, own), "{tag}");
    }
    let links = page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    assert!(links.into_iter().all(|link| link.starts_with('#')), "links stay on the page");
    assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\""));
}

#[test]
fn a_run_with_experts_has_a_map_for_each_block_and_a_dense_run_has_no_such_section() {
    let folder = Folder::new("report-experts");
    let dense = "{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"loss\":1.0}\n";
    let sparse = "{\"step\":1,\"loss\":2.0,\"expert_imbalance\":1.5,\"expert_loads\":[{\"block\":1,\"tokens\":[1,3]},\
                  {\"block\":2,\"tokens\":[2,2]}]}\n\
                  {\"step\":2,\"loss\":2.0,\"expert_imbalance\":null}\n\
                  {\"step\":3,\"loss\":2.0,\"expert_imbalance\":1.25,\"expert_loads\":[{\"block\":1,\"tokens\":[5,3]}]}\n\
                  {\"step\":4,\"loss\":2.0,\"expert_loads\":[{\"block\":\"<img>\",\"tokens\":{}},null,\"x\"]}\n";
    written_run(&folder.path("dense"), dense, "", &[STARTS]);
    written_run(&folder.path("sparse"), sparse, "", &[STARTS]);

    let plain = page(&folder.0, &["dense"]);
    assert!(!["id=\"experts\"", "#experts", "expert-imbalance"].iter().any(|part| plain.contains(part)));

    let page = page(&folder.0, &["dense", "sparse"]);
    assert!(page.contains("<a href=\"#experts\">Experts</a>") && !page.contains("could not be read"));
    let experts = section(&page, "experts");
    for part in [
        "dense: There are no experts",
        "<h3>Block 1</h3>",
        "largest load at step 3: 1.25 x mean, expert 0",
        "<h3>Block 2</h3>",
        "no loads at step 3",
        "A blue cell has no number.",
        "<div class=\"curve\" data-curve=\"expert-imbalance\"",
    ] {
        assert!(experts.contains(part), "{part} is not in {experts}");
    }
    let maps: Vec<&str> = experts.split("<svg ").skip(1).map(|part| part.split("</svg>").next().unwrap()).collect();
    assert_eq!(maps.len(), 2);
    for part in ["class=\"load-2\" d=\"m0 0h1\"", "class=\"load-6\" d=\"m0 1h1\"", "class=\"load-5\" d=\"m1 0h1\""] {
        assert!(maps[0].contains(part), "{part} is not in {}", maps[0]);
    }
    let table = &data(&page)["curves"]["expert-imbalance"][1];
    assert_eq!((&table[0], &table[1]), (&json!([1, 2, 3, 4]), &json!([1.5, null, 1.25, null])));
}

#[test]
fn a_page_that_follows_a_run_has_its_new_steps_and_ends_with_it() {
    let folder = Folder::new("report-follow");
    written_run(&folder.path("log"), "{\"step\":1,\"loss\":2.0}\n", "", &[STARTS]);
    let file = folder.path("page.html");
    let read = || fs::read_to_string(&file).ok();
    let child = report(&folder.0, &["log", "--follow", "--output", "page.html"]).spawn().unwrap();
    let first = wait_for("no page", read);
    assert_eq!((&data(&first)["reload"], &data(&first)["curves"]["loss"][0][0]), (&json!(5), &json!([1])));
    let append = |name: &str, line: &str| {
        let mut file = fs::File::options().append(true).open(folder.path("log").join(name)).unwrap();
        writeln!(file, "{line}").unwrap();
    };
    append("metrics.jsonl", "{\"step\":2,\"loss\":1.0}");
    wait_for("the page stays as it is", || (data(&read()?)["curves"]["loss"][0][0] == json!([1, 2])).then_some(()));
    append(
        "rank-0.jsonl",
        "{\"timestamp\":\"2026-01-01T00:00:01Z\",\"level\":\"INFO\",\"fields\":{\"message\":\"done: loss 1\"}}",
    );
    assert!(output_of(child).status.success());
    assert_eq!(data(&read().unwrap())["reload"], Value::Null, "the last page stays");
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_is_no_run_and_what_cannot_be_a_page_is_refused() {
    let folder = Folder::new("report-refused");
    fs::create_dir(folder.path("empty")).unwrap();
    written_run(&folder.path("log"), "", "", &[STARTS]);
    for (arguments, parts) in [
        (&["empty"][..], ["empty has neither metrics.jsonl nor rank-0.jsonl", "Rule: ", "--log-dir"]),
        (&["log", "missing"], ["missing has neither", "Rule: ", "Fix: "]),
        (
            &["log", "--output", "no/page.html"],
            ["--output no/page.html is in a folder that does not exist", "Rule: ", "Fix: "],
        ),
        (&["log", "--output", "empty"], ["--output empty is a folder", "Rule: ", "Fix: "]),
    ] {
        let output = report(&folder.0, arguments).output().unwrap();
        expect(&output, 2, &parts);
        assert_eq!(printed(&output).lines().count(), 1);
    }
    // A run that has done no step yet has a page too.
    assert!(page(&folder.0, &["log"]).contains("<td>not ended</td>"));
}

/// The document that a browser makes of a page after its scripts have run. Fails on any message on its console.
fn browsed(folder: &Folder, page: &Path) -> String {
    let browser = std::env::var_os("CHROMIUM").map_or_else(|| "chromium".into(), PathBuf::from);
    let mut command = Command::new(&browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--allow-file-access-from-files",
        "--enable-logging=stderr",
        "--v=0",
    ]);
    command.arg(format!("--user-data-dir={}", folder.path("browser").display())).env("TMPDIR", mpi_folder(&folder.0));
    command
        .args(["--window-size=1280,900", "--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("file://{}", page.display()));
    let output: Output = command
        .output()
        .unwrap_or_else(|error| panic!("{} cannot be started ({error}): run `./x test`", browser.display()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("CONSOLE"), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The value of an attribute of the whole document.
fn attribute<'d>(document: &'d str, name: &str) -> Option<&'d str> {
    let tag = document.split("<html").nth(1).unwrap().split('>').next().unwrap();
    tag.split_once(&format!("{name}=\"")).and_then(|(_, rest)| rest.split('"').next())
}

#[test]
fn curves_are_drawn_along_tokens_and_time_and_smoothed_on_a_page_that_fits_a_phone() {
    if std::env::var_os("NO_BROWSER").is_some() {
        return;
    }
    let folder = Folder::new("report-phone");
    pipeline_run(&folder);
    short_run(&folder, "other", "--steps 5 --lr 0.01");
    let page = page(&folder.0, &["log", "other/log"]);
    // A reader at the first step, along each axis, and with smooth curves.
    let reader = "<script>{\
                  const curve = document.querySelector('[data-curve=loss]');\
                  const said = (along, weight, log) => {\
                      document.getElementById('log').checked = log;\
                      document.getElementById('along').value = along;\
                      document.getElementById('smooth').value = weight;\
                      document.getElementById('along').dispatchEvent(new Event('input'));\
                      curve.dispatchEvent(new KeyboardEvent('keydown', { key: 'End', bubbles: true }));\
                      return document.querySelector('#loss output').textContent;\
                  };\
                  const all = [said('step', 0), said('tokens', 0), said('time', 0), said('step', 0.9), said('step', 0, true)];\
                  document.getElementById('smooth').value = 0.9;\
                  document.getElementById('smooth').dispatchEvent(new Event('input'));\
                  const lines = (id) => document.querySelectorAll(`[data-curve=${id}] .u-legend .raw`).length;\
                  all.push(`raw lines: ${lines('loss')} ${lines('validation')}`);\
                  document.documentElement.dataset.said = all.join(' | ');\
                  }</script></body>";
    fs::write(folder.path("read.html"), page.replace("</body>", reader)).unwrap();
    // A browser's window is no narrower than 500 pixels, a frame in it is.
    let frame = "<!DOCTYPE html><html><body><iframe src=\"read.html\" width=\"420\" height=\"800\"></iframe><script>\
                 onload = () => {\
                     const inside = document.querySelector('iframe').contentDocument.documentElement;\
                     const { said, errors } = inside.dataset;\
                     Object.assign(document.documentElement.dataset, { said, width: inside.scrollWidth, failed: errors ?? '' });\
                 };</script></body></html>";
    fs::write(folder.path("frame.html"), frame).unwrap();
    let document = browsed(&folder, &folder.path("frame.html"));
    assert_eq!(attribute(&document, "data-failed"), Some(""));
    let width: usize = attribute(&document, "data-width").unwrap().parse().unwrap();
    assert!(width <= 420, "the page is {width} pixels wide");
    let said: Vec<&str> = attribute(&document, "data-said").unwrap().split(" | ").collect();
    let value = |text: &str| text.split_once(": ").unwrap().1.to_string();
    let [steps, tokens, time, smooth, log, raw] = said[..] else { panic!("{said:?}") };
    assert!(steps.starts_with("step ") && tokens.contains(" tokens: ") && time.contains(" minutes: "), "{said:?}");
    assert_ne!(value(steps), value(smooth));
    assert_eq!(value(steps), value(log));
    assert_eq!(raw, "raw lines: 2 0", "two runs have their values behind the smoothed ones, validation has none");
}

#[test]
fn a_browser_draws_every_figure_and_the_keyboard_reads_it() {
    if std::env::var_os("NO_BROWSER").is_some() {
        return;
    }
    let folder = Folder::new("report-browser");
    pipeline_run(&folder);
    short_run(&folder, "other", "--steps 5 --lr 0.01");
    let page = page(&folder.0, &["log", "other/log"]);
    // The keys of a reader: to the second step of the losses, and to the second mark of the timeline.
    let reader = "<script>{\
                  const press = (element, key, times) => { for (let i = 0; i < times; i++) element.dispatchEvent(new \
                  KeyboardEvent('keydown', { key, bubbles: true })); };\
                  press(document.querySelector('[data-curve=loss]'), 'ArrowRight', 2);\
                  press(document.querySelector('#timeline-0 svg'), 'ArrowRight', 2);\
                  const said = (id) => document.querySelector(id + ' output').textContent;\
                  document.documentElement.dataset.said = said('#loss') + ' | ' + said('#timeline-0');\
                  }</script></body>";
    let read = folder.path("read.html");
    fs::write(&read, page.replace("</body>", reader)).unwrap();
    let document = browsed(&folder, &read);
    assert_eq!(attribute(&document, "data-errors"), None);
    let drawn = attribute(&document, "data-drawn").expect("the script did not end");
    let curves = "loss validation throughput memory lr norm";
    assert_eq!(drawn, format!("{curves} replays-0 memory-0-0 memory-0-1 timeline-0"));
    assert_eq!(document.matches("<canvas").count(), 6);
    let said = attribute(&document, "data-said").unwrap();
    let (loss, mark) = said.split_once(" | ").unwrap();
    assert!(loss.starts_with("step 2: log ") && loss.contains(", other/log "), "{loss}");
    let titles = section(&page, "timeline").split("<title>").nth(2).unwrap();
    assert_eq!(mark, titles.split("</title>").next().unwrap());
}
