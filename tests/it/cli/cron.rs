//! Promise: the crontabs and the systemd unit in the documents work as they are written.

use std::fs;
use std::process::{Command, Output};

use rustix::process::Signal;
use support::{Server, TempDir, eventually, in_repository};

use super::{PROGRAM, Program, WAIT_LIMIT, client};

support::tests![
    unit_of_the_documents_leads_again_after_a_loss,
    crontabs_of_the_documents_work_under_crons_path
];

/// Returns the lines of the crontabs in a document.
fn crontabs(document: &str) -> Vec<&str> {
    let blocks = document.split("```crontab\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    blocks.flat_map(str::lines).collect()
}

/// Runs a command as cron does: with its PATH, and the variables of the crontab.
fn run_as_cron(variables: &[(&str, &str)], command: &str) -> Output {
    let mut shell = Command::new("env");
    shell.args([
        "-i",
        "HOME=/",
        "LOGNAME=root",
        "SHELL=/bin/sh",
        "PATH=/usr/bin:/bin",
    ]);
    for (name, value) in variables {
        shell.arg(format!("{name}={value}"));
    }
    shell.args(["/bin/sh", "-c", command]).output().unwrap()
}

fn crontabs_of_the_documents_work_under_crons_path() {
    let documents = ["README.md", "docs/cli.md"]
        .map(|path| fs::read_to_string(in_repository(path)).unwrap_or_default());
    let lines: Vec<&str> = documents.iter().flat_map(|text| crontabs(text)).collect();
    let commands = lines.iter().filter(|line| {
        line.starts_with(['*', '@']) || line.starts_with(|c: char| c.is_ascii_digit())
    });
    let mut count = 0;
    for line in commands {
        check(line);
        count += 1;
    }
    assert!(count > 0, "no document has a crontab");
}

/// Runs a line twice: the first run does the job, and the second one prints nothing.
fn check(line: &str) {
    let server = Server::start();
    let directory = TempDir::create();
    // The job of the crontab, which does not exist here.
    let job = directory.write_executable("job", "#!/bin/sh\necho ran\n");
    let job = job.to_str().unwrap();
    // Five fields of time come first, or one such as `@daily`.
    let fields = if line.starts_with('@') { 1 } else { 5 };
    let command = line
        .split_whitespace()
        .skip(fields)
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        !command.contains('%'),
        "cron replaces this character: {line}"
    );
    let (program, rest) = command.split_once(' ').unwrap();
    assert!(program.starts_with('/'), "not found in cron's PATH: {line}");
    let (options, _) = rest.split_once(" -- ").unwrap();
    assert!(
        options.contains("--unreachable-for"),
        "no host runs the job while Redis restarts: {line}"
    );
    let command = format!("{PROGRAM} {options} -- {job}");
    let variables = [("REDIS_URL", server.url())];
    let variables = variables
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));

    let first = run_as_cron(&variables, &command);
    assert_eq!(first.status.code(), Some(0), "{line}: {first:?}");
    assert_eq!(first.stdout, b"ran\n", "{line}: {first:?}");
    let name = options.split_whitespace().nth(1).unwrap();
    assert!(
        !server.is_free(name),
        "the second host could run it, too: {line}"
    );
    let second = run_as_cron(&variables, &command);
    assert_eq!(second.status.code(), Some(0), "{line}: {second:?}");
    let printed = [second.stdout, second.stderr].concat();
    assert!(
        printed.is_empty(),
        "cron would send an email: {line}: {printed:?}"
    );
}

/// systemd itself does not run here: the test starts the unit's command where systemd would.
fn unit_of_the_documents_leads_again_after_a_loss() {
    let page = fs::read_to_string(in_repository("docs/cli.md")).unwrap();
    let (_, unit) = page.split_once("```ini\n").unwrap();
    let (unit, _) = unit.split_once("```").unwrap();
    let value = |key: &str| {
        unit.lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap()
    };
    assert_eq!(value("Restart="), "always");
    let (options, _) = value("ExecStart=/usr/local/bin/leasehold ")
        .split_once(" -- ")
        .unwrap();
    let name = options.rsplit(' ').next().unwrap();

    let server = Server::start();
    let lock = client(&server).mutex(name);
    let start = || {
        let job = "echo leads; trap 'exit 0' TERM; while :; do sleep 0.02; done";
        // Limits how long the program outlives an aborted test.
        let options = options.split(' ').chain(["--max-hold", "60s"]);
        let args: Vec<&str> = options.chain(["--", "sh", "-c", job]).collect();
        Program::start(&server.url(), &args)
    };
    let waits = || eventually(WAIT_LIMIT, || lock.waiting().unwrap() == 1);

    let mut first = start();
    assert_eq!(first.next_line(), "leads");
    let mut second = start();
    waits();
    assert!(lock.force_unlock().unwrap());
    assert_eq!(second.next_line(), "leads");
    let lost = first.code().unwrap().to_string();
    assert_eq!(lost, value("SuccessExitStatus="));

    let mut restarted = start();
    waits();
    second.send(Signal::TERM);
    assert_eq!(restarted.next_line(), "leads");
    assert!(second.process.wait().unwrap().success());
}
