//! Promise: documents, pictures and scripts of the repository agree with the source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::{env, fs};

use support::{TempDir, in_repository, scripts};

#[path = "../../benches/diagrams/sequence.rs"]
mod sequence;

#[path = "../../benches/peers/results.rs"]
mod results;
#[path = "../../benches/peers/results/tests.rs"]
mod results_tests;

fn text(path: &str) -> String {
    fs::read_to_string(in_repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

const PAGES: [&str; 12] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/benchmarks.md",
    "docs/cli.md",
    "docs/design.md",
    "docs/kernel.md",
    "docs/operations.md",
    "docs/scripts/README.md",
    "examples/README.md",
    "src/guide/other_libraries.md",
];

/// Pages that the guide includes: their links must work on docs.rs, too.
const INCLUDED: [&str; 3] = [
    "docs/cli.md",
    "docs/operations.md",
    "src/guide/other_libraries.md",
];

#[test]
fn readme_is_a_page_for_a_person_deciding_in_five_minutes() {
    let page = text("README.md");
    assert!(page.lines().count() <= 180);
    let lines_of = |title: &str| {
        let (_, section) = page.split_once(&format!("\n## {title}\n\n")).unwrap();
        let lines = section.lines().take_while(|line| !line.is_empty());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let bullets = lines_of("What you get");
    assert_eq!(bullets.len(), 8);
    assert!(bullets.iter().all(|line| line.starts_with("- ")));
    assert_eq!(lines_of("Is it safe?").len(), 6);
}

#[test]
fn readme_names_the_two_first_commands_right_after_the_example() {
    let page = text("README.md");
    let (_, after_example) = page.split_once("    Ok(())\n}\n```\n").unwrap();
    let (first_screen, _) = after_example.split_once("\n## ").unwrap();
    let makefile = text("Makefile");
    for target in ["demo", "test"] {
        assert!(first_screen.contains(&format!("\n- `make {target}` ")));
        assert!(makefile.contains(&format!("\n{target}: ")));
    }
    assert_eq!(first_screen.matches("minutes").count(), 2);
}

/// A bound that nobody has thought through may refuse service.
#[test]
fn table_of_bounds_has_each_bound_of_the_library() {
    let page = text("docs/kernel.md");
    let (_, bounds) = page.split_once("\n## Bounds\n").unwrap();
    let (bounds, _) = bounds.split_once("\n## ").unwrap();
    let mut declared = BTreeMap::<String, usize>::new();
    let mut folders = vec![in_repository("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // The simulation's own.
                folders.extend((!path.ends_with("src/sim")).then_some(path));
                continue;
            }
            let code = fs::read_to_string(&path).unwrap();
            let constants = code
                .lines()
                .filter_map(|line| line.split_once("const ")?.1.split_once(':'));
            let names = constants.map(|(name, _)| name);
            let names = names.filter(|name| ["MOST", "MAX_"].iter().any(|it| name.starts_with(it)));
            for name in names {
                *declared.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    // Two bounds can have one name.
    let is_missing =
        |(name, count): &(&String, &usize)| bounds.matches(&format!("`{name}`")).count() < **count;
    let missing: Vec<_> = declared.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/kernel.md, Bounds: {missing:?}");
}

#[test]
fn page_about_the_kernel_names_each_mistake_and_only_tests_that_exist() {
    let page = text("docs/kernel.md");
    let section = |title: &str| {
        let (_, section) = page.split_once(&format!("\n{title}\n")).unwrap();
        section.split_once("\n## ").unwrap().0.to_owned()
    };
    let source = text("src/mutant.rs");
    let mistakes = source
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','));
    let mistakes: BTreeSet<&str> = mistakes.filter(|name| is_camel_case(name)).collect();
    let missing = mistakes
        .iter()
        .filter(|it| !page.contains(&format!("`{it}`")));
    assert_eq!(missing.collect::<Vec<_>>(), [&""; 0]);
    let invariants = section("## Invariants");
    let named = in_backticks(&invariants).filter(|word| is_camel_case(word));
    let unknown: Vec<&str> = named.filter(|it| !mistakes.contains(it)).collect();
    assert_eq!(unknown, [""; 0]);

    let code: String = ["src", "tests"].map(code_of).concat();
    let attacks = section("### Over a quorum, and of sets");
    let tests = in_backticks(&attacks).filter(|word| word.matches('_').count() > 2);
    let unknown: Vec<&str> = tests
        .filter(|it| !code.contains(&format!("fn {it}(")))
        .collect();
    assert_eq!(unknown, [""; 0]);
}

fn in_backticks(page: &str) -> impl Iterator<Item = &str> {
    page.split('`').skip(1).step_by(2)
}

fn is_camel_case(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_uppercase())
        && word.chars().all(|it| it.is_ascii_alphanumeric())
        && word.contains(|it: char| it.is_ascii_lowercase())
}

/// Returns the Rust code of a folder.
fn code_of(folder: &str) -> String {
    let mut code = String::new();
    let mut folders = vec![in_repository(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                code += &fs::read_to_string(&path).unwrap();
            }
        }
    }
    code
}

#[test]
fn glossary_has_at_most_25_terms() {
    let page = text("docs/design.md");
    let (_, words) = page.split_once("\n## Words\n").unwrap();
    let (words, _) = words.split_once("\n## ").unwrap();
    let terms = words.lines().filter(|line| line.starts_with("| "));
    let terms = terms.filter(|line| *line != "| word | meaning |").count();
    assert!((1..=25).contains(&terms), "{terms} terms");
}

#[test]
fn links_lead_to_files_of_the_package_or_to_pages_of_the_guide() {
    for page in PAGES {
        let folder = Path::new(page).parent().unwrap();
        for link in links(&text(page)) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let guide = "https://docs.rs/leasehold/latest/leasehold/guide/";
            if let Some(rest) = path.strip_prefix(guide) {
                let module = rest.trim_end_matches("index.html").trim_end_matches('/');
                let line = format!("pub mod {module}");
                let is_page = module.is_empty() || text("src/guide/mod.rs").contains(&line);
                assert!(is_page, "{page}: {link}");
            } else if path.is_empty() {
                assert!(has_heading(&text(page), anchor), "{page}: {link}");
            } else if !path.contains("://") && !path.starts_with("crate::") {
                assert!(!INCLUDED.contains(&page), "{page}: {link} is not absolute");
                let file = in_repository(&folder.join(path).to_string_lossy());
                assert!(file.exists(), "{page}: {link}");
                if !anchor.is_empty() {
                    let headings = fs::read_to_string(file).unwrap();
                    assert!(has_heading(&headings, anchor), "{page}: {link}");
                }
            }
        }
    }
}

/// Returns the targets of all links, those in `[name]: target` lines included.
fn links(page: &str) -> Vec<String> {
    let inline = page.split("](").skip(1);
    let inline = inline.filter_map(|rest| rest.split(')').next());
    let references = page.lines().filter_map(|line| {
        let (_, target) = line.strip_prefix('[')?.split_once("]: ")?;
        Some(target)
    });
    inline.chain(references).map(str::to_owned).collect()
}

fn has_heading(page: &str, anchor: &str) -> bool {
    page.lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let slug = title.replace(' ', "-");
            slug.replace(['`', ',', ':'], "") == anchor
        })
}

/// `tests/process/metrics.rs` asserts that the page lists exactly what a client reports.
#[test]
fn dashboard_and_alerts_use_exported_metrics_and_labels() {
    let guide = text("src/guide/observability.rs");
    for file in [
        "docs/grafana/leasehold.json",
        "docs/prometheus/leasehold.yml",
        "docs/prometheus/tests.yml",
    ] {
        let text = text(file).replace("\\\"", "\"");
        let mut used = 0;
        for rest in text.split("leasehold_").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
            let row_of = |name: &str| {
                let row = format!("//! | `leasehold_{name}`");
                guide.lines().find(|line| line.starts_with(&row))
            };
            // Some exporters make buckets of a histogram.
            let histogram = name.strip_suffix("_bucket").and_then(row_of);
            let histogram = histogram.filter(|row| row.contains("| histogram |"));
            let row = row_of(name).or(histogram);
            let row = row.unwrap_or_else(|| panic!("{file}: no metric is named leasehold_{name}"));
            used += 1;
            let Some(selector) = rest.strip_prefix('{') else {
                continue;
            };
            for label in selector.split('}').next().unwrap().split(", ") {
                let label = label.split(['=', '!']).next().unwrap();
                let is_known = ["job", "instance", "quantile"].contains(&label)
                    || label == "le" && histogram.is_some()
                    || row.contains(&format!("`{label}`"));
                assert!(is_known, "{file}: leasehold_{name} has no label {label}");
            }
        }
        assert!(used >= 10, "{file}: {used} metrics");
    }
}

/// `promtool` evaluates these expressions, for an exporter that makes summaries and for one that
/// makes buckets.
#[test]
fn every_quantile_of_the_dashboard_has_both_forms_and_is_tested() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&text("docs/grafana/leasehold.json")).unwrap();
    let tests = text("docs/prometheus/tests.yml");
    let panels = dashboard["panels"].as_array().unwrap();
    let mut quantiles = 0;
    for panel in panels {
        let expressions = panel["targets"].as_array().unwrap().iter();
        let expressions: Vec<&str> = expressions.map(|it| it["expr"].as_str().unwrap()).collect();
        let count = |part: &str| expressions.iter().filter(|it| it.contains(part)).count();
        let summaries = count("quantile=~");
        assert_eq!(
            count("histogram_quantile("),
            2 * summaries,
            "{}",
            panel["title"]
        );
        quantiles += summaries;
        for expression in expressions.iter().filter(|it| it.contains("quantile")) {
            let expression = expression
                .replace("$job", ".*")
                .replace("$instance", ".*")
                .replace("$__rate_interval", "5m");
            let line = format!("- expr: {expression}\n");
            assert!(tests.contains(&line), "{expression} is not tested");
        }
    }
    assert_eq!(quantiles, 3);
}

#[test]
fn every_alert_has_an_entry_in_the_runbook() {
    let rules = text("docs/prometheus/leasehold.yml");
    let page = text("docs/operations.md");
    let alerts: BTreeSet<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let entries: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .filter(|title| title.starts_with("Leasehold"))
        .collect();
    assert_eq!(alerts, entries);
    assert!(alerts.len() >= 4, "{alerts:?}");
}

#[test]
fn every_picture_and_every_bench_is_on_a_page() {
    let benchmarks = text("docs/benchmarks.md");
    let guide = files("src/guide").into_iter().map(|file| text(&file));
    let pages = PAGES.iter().map(|page| text(page)).chain(guide);
    let pages: String = pages.collect();
    let manifest = text("benches/Cargo.toml");
    let pictures = text("benches/peers/pictures.rs");
    for file in files("docs").iter().filter(|file| file.ends_with(".svg")) {
        let picture = file.strip_prefix("docs/").unwrap();
        let is_shown =
            pages.contains(&format!("]({picture})")) || pages.contains(&format!("/{picture}"));
        assert!(is_shown, "{file} is on no page");
        let is_drawn = pictures.contains(&format!("\"{picture}\""))
            || sequence::ALL.iter().any(|diagram| diagram.file == picture);
        assert!(is_drawn, "{file}: no command redraws it");
    }
    for bench in manifest.split("[[bench]]\nname = \"").skip(1) {
        let (bench, _) = bench.split_once('"').unwrap();
        assert!(
            benchmarks.contains(&format!("--bench {bench} ")),
            "{bench} is not in docs/benchmarks.md"
        );
    }
}

/// `DRAW=1 make benchmarks` writes them.
#[test]
fn benchmarks_show_all_runs_and_at_most_three_pictures() {
    let page = text("docs/benchmarks.md");
    let runs = results::read(&text("docs/benchmarks.jsonl"));
    let shown = results::with_tables(&page, &results::tables(&runs));
    assert!(page == shown, "run `DRAW=1 make benchmarks`");
    assert!((1..=3).contains(&page.matches("![").count()));
}

/// Returns the paths of the files in a folder of the repository.
fn files(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(in_repository(folder)).unwrap();
    let files = entries
        .map(Result::unwrap)
        .filter(|entry| entry.path().is_file());
    files
        .map(|entry| format!("{folder}/{}", entry.file_name().to_str().unwrap()))
        .collect()
}

#[test]
fn observability_lists_the_key_values_of_all_log_records() {
    let mut keys = BTreeSet::new();
    key_values_in(&in_repository("src"), &mut keys);
    let guide = text("src/guide/observability.rs");
    let rows = guide
        .lines()
        .skip_while(|line| *line != "//! | key | value |");
    let rows = rows.skip(2).map_while(|line| line.strip_prefix("//! | `"));
    let listed: BTreeSet<String> = rows
        .flat_map(|row| row.split(" | ").next().unwrap().split([',', ' ', '`']))
        .filter(|key| !key.is_empty())
        .map(str::to_owned)
        .collect();
    assert_eq!(keys, listed);
    assert!(keys.len() >= 5, "{keys:?}");
}

/// Collects the keys of all log records in the Rust files below `folder`.
fn key_values_in(folder: &Path, keys: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            key_values_in(&path, keys);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            for record in source.split("logging::").skip(1) {
                let record = record.split_once("!(").filter(|(level, _)| is_key(level));
                keys.extend(record.into_iter().flat_map(|(_, rest)| key_values(rest)));
            }
        }
    }
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// Returns the keys before the message of a log record, of which `rest` begins with the arguments.
fn key_values(rest: &str) -> Vec<String> {
    let (mut depth, mut is_quoted) = (0, false);
    let end = rest.find(|c| {
        match c {
            '"' => is_quoted = !is_quoted,
            '(' | '{' if !is_quoted => depth += 1,
            ')' | '}' if !is_quoted => depth -= 1,
            _ => {}
        }
        depth < 0 || depth == 0 && !is_quoted && c == ';'
    });
    let Some(arguments) = end
        .map(|end| &rest[..=end])
        .and_then(|it| it.strip_suffix(';'))
    else {
        return Vec::new();
    };
    let keys = arguments.split(" = ").map(|before| {
        let key = before.rsplit([',', ' ', '\n']).next().unwrap_or(before);
        key.split(':').next().unwrap_or(key)
    });
    // The last part has no key: it follows the last ` = `.
    let count = arguments.matches(" = ").count();
    keys.take(count)
        .map(str::to_owned)
        .filter(|key| is_key(key))
        .collect()
}

#[test]
fn sequence_diagrams_are_those_that_the_program_draws() {
    for diagram in sequence::ALL {
        let path = format!("docs/{}", diagram.file);
        assert!(text(&path) == diagram.svg(), "{path}: run `make diagrams`");
    }
}

/// Runs `.ci/server` on a machine with these programs, each of them a shell script.
fn run_server_script(programs: &[(&str, &str)], ci: &str) -> Output {
    let folder = TempDir::create();
    for (name, script) in programs
        .iter()
        .chain(&[("dirname", "echo \"${1%/*}\""), ("env", "shift; \"$@\"")])
    {
        folder.write_executable(name, &format!("#!/bin/sh\n{script}\n"));
    }
    Command::new("/bin/sh")
        .arg(in_repository(".ci/server"))
        .arg("redis")
        .env("PATH", folder.path())
        .env("CI", ci)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A script that creates a server's binary, as the installation by `apt-get` does.
const APT_GET: &str = "echo \"ran apt-get $1\" >&2; [ \"$1\" = update ] || \
    { echo > \"${0%/*}/redis-server\"; PATH=/usr/bin:/bin chmod +x \"${0%/*}/redis-server\"; }";

#[test]
fn installation_of_a_server_is_announced_before_anything_runs_as_root() {
    let sudo = "echo \"ran sudo $1\" >&2; [ \"$1\" = -n ] && shift; exec \"$@\"";
    for ci in ["true", ""] {
        let programs = [("apt-get", APT_GET), ("id", "echo 1000"), ("sudo", sudo)];
        let output = run_server_script(&programs, ci);
        let messages = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{messages}");
        let announced = messages.find("apt-get as root, with sudo");
        let ran = messages
            .find("ran sudo -n")
            .expect("sudo asks for no password");
        assert!(announced.is_some_and(|at| at < ran), "{messages}");
        // Its input is empty, so the script must not ask.
        assert!(!messages.contains("Go ahead?"), "{messages}");
        assert!(
            String::from_utf8(output.stdout)
                .unwrap()
                .ends_with("/redis-server\n")
        );
    }
}

#[test]
fn root_needs_no_sudo_to_install_a_server() {
    let programs = [("apt-get", APT_GET), ("id", "echo 0")];
    let output = run_server_script(&programs, "true");
    let messages = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{messages}");
    assert!(messages.contains("installing the package redis-server with apt-get"));
    assert!(!messages.contains("sudo"), "{messages}");
}

#[test]
fn wrong_path_of_a_server_is_an_error() {
    let output = Command::new(in_repository(".ci/server"))
        .env("REDIS_SERVER_BIN", "/no/such/server")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{messages}");
    assert!(messages.contains("/no/such/server"), "{messages}");
}

#[test]
fn machine_without_a_server_and_an_installer_gets_a_hint() {
    let output = run_server_script(&[("id", "echo 1000")], "true");
    let messages = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{messages}");
    assert!(
        messages.contains("there is none on this machine"),
        "{messages}"
    );
}

/// `LEASEHOLD_RECORD=1` writes them.
#[test]
fn assembled_scripts_are_those_of_the_client() {
    let folder = in_repository("docs/scripts");
    let page = text("docs/scripts/README.md");
    let mut files = BTreeSet::from(["README.md".to_owned()]);
    let mut assembled = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| [")) {
        let (file, _) = row[3..].split_once(']').unwrap();
        let parts = row.trim_end_matches(" |").rsplit('|').next().unwrap();
        let parts = parts.split_whitespace();
        let script: String = parts
            .map(|part| text(&format!("src/protocol/{part}.lua")))
            .collect();
        if env::var_os("LEASEHOLD_RECORD").is_some() {
            fs::write(folder.join(file), &script).unwrap();
        }
        assert_eq!(text(&format!("docs/scripts/{file}")), script, "{file}");
        assert!(files.insert(file.to_owned()), "{file} has two rows");
        assembled.insert(script);
    }
    let sent = scripts::NAMED.map(|(_, script)| script.to_owned());
    assert_eq!(assembled, BTreeSet::from(sent));
    let there = fs::read_dir(folder).unwrap();
    let there = there.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.collect::<BTreeSet<_>>(), files);
}
