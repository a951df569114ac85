//! Promise: the program logs on with the credentials of its environment and files.

use std::fs;
use std::io::BufReader;

use support::{Server, TempDir, eventually};

use super::{Program, WAIT_LIMIT, program};

support::tests![
    password_file_is_read_again_while_the_command_runs,
    credentials_of_the_environment_fill_in_a_url_without_a_password
];

fn credentials_of_the_environment_fill_in_a_url_without_a_password() {
    let server = Server::start();
    let user = ["SETUSER", "ann", "on", ">s3c:r/e@t", "~*", "&*", "+@all"];
    server.run("ACL", &user);
    server.run("CONFIG", &["SET", "requirepass", "s3c:r/e@t"]);
    let plain = server.url();
    let address = plain.strip_prefix("redis://").unwrap();
    let named = format!("redis://ann@{address}");
    let wrong = format!("redis://ann:wrong@{address}");
    let [user, password] = [("REDIS_USERNAME", "ann"), ("REDIS_PASSWORD", "s3c:r/e@t")];
    for (url, variables, expected) in [
        (&plain, &[password][..], 0),
        (&plain, &[user, password], 0),
        (&named, &[password], 0),
        (&wrong, &[user, password], 77),
        (&plain, &[], 77),
    ] {
        for (env_url, args) in [
            (url.as_str(), &["status", "a"][..]),
            ("", &["status", "a", "--url", url]),
        ] {
            let mut command = program(env_url);
            let output = command.args(args).envs(variables.iter().copied()).output();
            let output = output.unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(expected), "{args:?}: {said}");
            let has_advice = said.contains("REDIS_PASSWORD");
            assert_eq!(has_advice, expected != 0, "{args:?}: {said}");
            assert!(!said.contains(password.1), "{said}");
        }
    }
}

fn password_file_is_read_again_while_the_command_runs() {
    let server = Server::start();
    let set_password = |password: &str| {
        let password = format!(">{password}");
        let user = ["SETUSER", "app", "on", "resetpass", &password];
        server.run("ACL", &[&user[..], &["~*", "&*", "+@all"]].concat());
    };
    let url = format!("redis://app@127.0.0.1:{}", server.port());
    for by_option in [true, false] {
        let directory = TempDir::create();
        let (file, end) = (directory.join("password"), directory.join("end"));
        fs::write(&file, "first\n").unwrap();
        set_password("first");
        let mut command = program(&url);
        command.args(["run", "a", "--ttl", "900ms"]);
        if by_option {
            command.arg("--password-file").arg(&file)
        } else {
            command.env("REDIS_PASSWORD_FILE", &file)
        };
        let script = format!(
            "echo up; until [ -e {} ]; do sleep 0.05; done",
            end.display()
        );
        let mut process = command.args(["--", "sh", "-c", &script]).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let mut program = Program { process, lines };
        assert_eq!(program.next_line(), "up");

        set_password("second");
        fs::write(&file, "second\n").unwrap();
        server.run("CLIENT", &["KILL", "USER", "app"]);
        // Renewals, over a connection with the new password.
        let renewals = server.script_calls();
        eventually(WAIT_LIMIT, || server.script_calls() >= renewals + 2);
        fs::write(&end, "").unwrap();
        assert_eq!(program.code(), Some(0), "{}", program.errors());
    }
    let mut missing = program(&url);
    let missing = missing.args(["status", "a", "--password-file", "/no/such"]);
    let output = missing.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("/no/such (--password-file)"), "{said}");
}
