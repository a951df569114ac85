//! Promise: a run that its own ancestor refuses says so, and does not wait for ever.

use support::{Server, eventually};

use super::{PROGRAM, Program, WAIT_LIMIT, client, hold, program};

support::tests![
    readers_and_permits_of_ancestors_are_shared,
    lock_of_an_ancestor_is_refused_with_a_message,
    reader_behind_a_writer_that_waits_for_its_ancestor_is_refused,
    lock_that_another_program_holds_is_waited_for
];

/// Returns the exit code and the messages of a run that starts this script. In it, `$0` is the
/// program.
fn nested(server: &Server, options: &[&str], script: &str) -> (Option<i32>, String) {
    let args = [
        &["run", "--max-hold", "20s"],
        options,
        &["--", "sh", "-c", script, PROGRAM],
    ];
    let output = program(&server.url()).args(args.concat()).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code(), said)
}

fn lock_of_an_ancestor_is_refused_with_a_message() {
    let server = Server::start();
    let (free, twice) = (&["a"][..], &["-n", "b", "-n", "a"][..]);
    for (outer, inner) in [
        (free, r#""$0" run a true"#),
        (free, r#""$0" run a --wait 30s true"#),
        (free, r#""$0" run a --no-wait true"#),
        (free, r#""$0" run a --no-wait --not-acquired-exit 0 true"#),
        (free, r#""$0" run -q a --fair true"#),
        (free, r#""$0" run a --read true"#),
        (free, r#""$0" run a --write true"#),
        (free, r#""$0" run -n c -n a -- true"#),
        (free, r#"sh -c '"$0" run a true' "$0""#),
        (free, r#""$0" run z -- "$0" run a true"#),
        (&["a", "--fair"], r#""$0" run a --fair true"#),
        (&["a", "--fair"], r#""$0" run a true"#),
        (&["a", "--write"], r#""$0" run a --read true"#),
        (&["a", "--read"], r#""$0" run a --write --wait 30s true"#),
        (&["a", "--read"], r#""$0" run a true"#),
        (twice, r#""$0" run a true"#),
        (twice, r#""$0" run -n c -n b -- true"#),
        (&["a", "--permits", "1"], r#""$0" run a --permits 1 true"#),
    ] {
        let (code, said) = nested(&server, outer, inner);
        assert_eq!(code, Some(64), "{outer:?}: {inner}: {said}");
        assert!(said.contains("was started under"), "{said}");
        assert!(server.is_free("a") && server.is_free("c"), "{inner}");
    }
    // All permits are those of ancestors.
    let inner = r#""$0" run a --permits 2 -- "$0" run a --permits 2 --wait 30s true"#;
    let (code, said) = nested(&server, &["a", "--permits", "2"], inner);
    assert_eq!(code, Some(64), "{said}");
}

fn readers_and_permits_of_ancestors_are_shared() {
    let server = Server::start();
    let three = &["a", "--permits", "3"][..];
    for (outer, inner) in [
        (&["a", "--read"][..], r#""$0" run a --read -- echo ran"#),
        (three, r#""$0" run a --permits 3 -- echo ran"#),
        (
            three,
            r#""$0" run a --permits 3 -- "$0" run a --permits 3 -- echo ran"#,
        ),
        // The lock and the semaphore of a name are independent.
        (&["a"], r#""$0" run a --permits 1 -- echo ran"#),
        (&["a"], r#""$0" run b -- echo ran"#),
        (&["a"], r#""$0" run a --key-prefix other: -- echo ran"#),
    ] {
        let (code, said) = nested(&server, outer, inner);
        assert_eq!(
            (code, said.as_str()),
            (Some(0), "ran\n"),
            "{outer:?}: {inner}"
        );
    }
    // The same name on another server.
    let other = Server::start();
    let inner = format!(r#""$0" run a --url {} -- echo ran"#, other.url());
    assert_eq!(nested(&server, &["a"], &inner), (Some(0), "ran\n".into()));
}

/// A writer that waits gets the lock before later readers: the three would wait for each other.
fn reader_behind_a_writer_that_waits_for_its_ancestor_is_refused() {
    let server = Server::start();
    let script = format!("echo ready; read _; {PROGRAM} run a --read -- echo ran");
    let args = [
        "run",
        "a",
        "--read",
        "--max-hold",
        "20s",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let mut command = program(&server.url());
    let mut process = command
        .args(args)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let input = process.stdin.take().unwrap();
    let lines = std::io::BufReader::new(process.stdout.take().unwrap());
    let mut outer = Program { process, lines };
    assert_eq!(outer.next_line(), "ready");
    let mut writer = Program::run(&server.url(), &["--write"], "true");
    let catalogue = client(&server).rw_lock("a");
    eventually(WAIT_LIMIT, || catalogue.waiting().unwrap() == 1);
    // Ends the shell's `read`.
    drop(input);
    assert_eq!(outer.code(), Some(64));
    let said = outer.errors();
    assert!(said.contains("a writer waits for"), "{said}");
    assert_eq!(writer.code(), Some(0));
}

fn lock_that_another_program_holds_is_waited_for() {
    let server = Server::start();
    let held = hold(&server);
    let _permit = client(&server).semaphore("s", 2).acquire().unwrap();
    for (outer, inner) in [
        ("b", r#""$0" run a --no-wait true"#),
        // A permit of another holder may become free.
        (
            "s --permits 2",
            r#""$0" run s --permits 2 --wait 100ms true"#,
        ),
    ] {
        let outer: Vec<&str> = outer.split(' ').collect();
        let (code, said) = nested(&server, &outer, inner);
        assert_eq!(code, Some(75), "{said}");
    }
    drop(held);
}
