//! Unit tests of what is computed from the runs of `make benchmarks`.

use serde_json::{Value, json};

use super::results::*;

fn run(values: [(&str, f64); 4]) -> Run {
    let figures: serde_json::Map<String, Value> = values
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    Run(json!({
        "date": "2026-11-27T10:00:00Z", "machine": "a machine", "command": "make benchmarks",
        "figures": {"acq_per_s": figures},
        "problems": {"careless": "too many holders at once: 3 of 9"},
    }))
}

fn runs() -> Vec<Run> {
    [[400.0, 500.0, 450.0, 900.0], [420.0, 480.0, 470.0, 950.0]]
        .map(|[ours, bare, good, careless]| {
            run([
                (OURS, ours),
                (BARE, bare),
                ("good", good),
                ("careless", careless),
            ])
        })
        .into()
}

#[test]
fn range_is_from_the_lowest_to_the_highest_run() {
    assert_eq!(
        range(&runs(), "acq_per_s", "good"),
        Some([450.0, 470.0, 470.0])
    );
    assert_eq!(range(&runs(), "acq_per_s", "absent"), None);
    assert_eq!(range(&runs(), "absent", "good"), None);
}

#[test]
fn candidates_are_ordered() {
    let names = candidates(&runs(), "acq_per_s");
    assert_eq!(names, [OURS, BARE, "careless", "good"]);
}

#[test]
fn best_peer_has_no_problem_and_is_neither_ours_nor_bare() {
    for is_more_better in [true, false] {
        let best = best_peer(&runs(), "acq_per_s", is_more_better);
        assert_eq!(best.as_deref(), Some("good"));
    }
    let two = [run([
        (OURS, 1.0),
        (BARE, 1.0),
        ("fast", 2.0),
        ("slow", 3.0),
    ])];
    let best = |is_more_better| best_peer(&two, "acq_per_s", is_more_better);
    assert_eq!(best(true).as_deref(), Some("slow"));
    assert_eq!(best(false).as_deref(), Some("fast"));
}

#[test]
fn a_fifth_is_the_limit_of_what_does_not_differ() {
    assert!(!differs(100.0, 120.0));
    assert!(differs(100.0, 120.1));
    assert!(!differs(100.0, 80.0));
    assert!(differs(100.0, 79.9));
    assert!(!differs(0.0, 0.0));
    assert!(differs(0.0, 0.1));
}

#[test]
fn figures_that_differ_are_named_with_both_values() {
    let last = run([(OURS, 400.0), (BARE, 500.0), ("good", 450.0), ("gone", 1.0)]);
    let new = run([(OURS, 300.0), (BARE, 510.0), ("good", 560.0), ("new", 1.0)]);
    let said = differing(&last, &new);
    assert_eq!(
        said,
        [
            "acq_per_s, good: 560, in the last run 450",
            "acq_per_s, leasehold Mutex: 300, in the last run 400",
        ]
    );
}

#[test]
fn rows_show_ranges_of_ours_of_the_best_peer_and_of_the_bare_commands() {
    let text = tables(&runs());
    assert!(text.starts_with("2 runs of `make benchmarks`, on 2026-11-27,\non a machine.\n"));
    let row = "shares of the luckiest and the unluckiest process | \
               400 to 420 | 450 to 470 (good) | 480 to 500 |\n";
    assert!(text.contains(row), "{text}");
    let row = "| careless | 900 to 950 |  |  |  |  |  |  | too many holders at once: 3 of 9 |\n";
    assert!(text.contains(row), "{text}");
    let (first, _) = text.split_once("\nThe same 8 processes").unwrap();
    assert_eq!(
        first.lines().filter(|line| line.starts_with("| ")).count(),
        1 + 10
    );
}

#[test]
fn tables_replace_what_is_between_the_marks() {
    let page = format!("above\n{BEGIN}old\n{END}below\n");
    let page = with_tables(&page, "new\n");
    assert_eq!(page, format!("above\n{BEGIN}\nnew\n\n{END}below\n"));
    assert_eq!(with_tables(&page, "new\n"), page);
}

#[test]
fn numbers_have_at_most_three_digits_that_count() {
    let shown = [0.058, 9.996, 12.34, 99.96, 437.4, 999.6, 1_234.0, 11_026.0].map(number);
    let expected = [
        "0.06", "10.0", "12.3", "100", "437", "1 000", "1 230", "11 000",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn runs_are_read_line_by_line() {
    let lines: String = runs().iter().map(|run| format!("{}\n", run.0)).collect();
    let read = read(&lines);
    assert_eq!(read.len(), 2);
    assert_eq!(read[1].figure("acq_per_s", OURS), Some(420.0));
    assert_eq!(
        read[1].problem("careless"),
        Some("too many holders at once: 3 of 9")
    );
}
