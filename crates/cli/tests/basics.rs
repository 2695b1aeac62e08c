//! Basics: a program runs with its own streams and exit status, and nothing is left over.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod harness;

use harness::{Place, finish};

#[test]
fn the_programs_exit_status_is_ours() {
    let place = Place::new();
    for code in [0, 1, 2, 77, 255] {
        assert_eq!(place.sh(&[], &format!("exit {code}")).code, code);
    }
}

#[test]
fn streams_are_kept_apart() {
    let done = Place::new().sh(&[], "echo out; echo err >&2");
    assert_eq!((done.stdout.as_str(), done.stderr.as_str(), done.code), ("out\n", "err\n", 0));
}

#[test]
fn completions_and_manual_pages_come_from_the_command_line_itself() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let done = finish(place.command(["completions", shell]).spawn().unwrap());
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{shell}");
        // A flag of a command whose arguments are described lazily.
        assert!(done.stdout.contains("http-allowed") && done.stdout.contains("workspace"), "{shell}");
    }
    let pages = place.path("man");
    std::fs::create_dir(&pages).unwrap();
    let done = finish(place.command(["man", pages.to_str().unwrap()]).spawn().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let page = std::fs::read_to_string(pages.join("saggar-serve.1")).unwrap();
    assert!(page.starts_with(".ie") && page.contains("\\-\\-http\\-allowed"), "{page}");
    assert!(pages.join("saggar-sandbox-kill.1").exists());
    let done = finish(place.command(["man", "/nowhere/at/all"]).spawn().unwrap());
    assert_eq!(done.code, 125);
    assert!(done.stderr.contains("is not a directory"), "{}", done.stderr);
}

#[test]
fn the_first_word_that_is_no_flag_is_the_program_and_all_after_it_its_own() {
    let place = Place::new();
    let run = |arguments: &[&str]| {
        let output = place.command([&["run"], arguments].concat()).output().expect("the binary was built");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let said = |text: &str| (Some(0), text.to_owned());
    assert_eq!(run(&["/bin/echo", "a", "--json", "-n", "--", "b"]), said("a --json -n -- b\n"));
    assert_eq!(run(&["--env", "A=1", "sh", "-c", "echo $A \"$@\"", "sh", "--memory", "x"]), said("1 --memory x\n"));
    assert_eq!(run(&["--", "/bin/echo", "--", "a"]), said("-- a\n"));
    // An unknown flag is not taken for a program.
    assert_eq!(run(&["--no-such-flag", "/bin/echo"]), (Some(125), String::new()));
    assert_eq!(run(&["--", "--no-such-program"]).0, Some(127));
}
