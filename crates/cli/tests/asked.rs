//! `saggar run --ask` on a real terminal, against the world of tests/network/world.py.

mod harness;
mod traces;

use std::process::{Child, Command, Stdio};

use harness::{Place, finish};
use traces::terminal::Terminal;

const WORLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/network/world.py");
/// The end of a question.
const CHOICES: &str = "[n]o: ";

/// `saggar run --net proxied --ask FLAGS -- sh -c SCRIPT` in the world.
fn command(place: &Place, flags: &[&str], script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", WORLD]).arg(place.path("seen.log"));
    command.arg(env!("CARGO_BIN_EXE_saggar")).args(["run", "--net", "proxied", "--ask"]).args(flags);
    command.args(["--", "/bin/sh", "-c", script]).env("SAGGAR_DATA_DIR", place.path("data"));
    command
}

fn start(terminal: &Terminal, place: &Place, flags: &[&str], script: &str) -> Child {
    terminal.start(command(place, flags, script))
}

fn seen(place: &Place) -> usize {
    std::fs::read_to_string(place.path("seen.log")).expect("the world writes it").lines().count()
}

/// Asks for the status of a page without proxy variables, so that the question comes at connect.
const STATUS: &str = "status() { curl -sS --noproxy '*' -m 50 -o /dev/null -w '%{http_code}\\n' \"$@\"; }; ";

#[test]
fn a_question_names_program_and_host_and_each_answer_does_what_it_says() {
    for (key, statuses) in [(b"r", "200\r\n200\r\n"), (b"n", "403\r\n403\r\n")] {
        let (place, terminal) = (Place::new(), Terminal::open());
        let script = format!("{STATUS} status http://good.test/1; status http://good.test/2; echo last");
        let child = start(&terminal, &place, &[], &script);
        let asked = terminal.read(CHOICES);
        assert!(
            asked.contains("saggar: curl wants to connect to good.test:80, and no rule allows it\r\n"),
            "{asked:?}"
        );
        assert!(!asked.contains("[a]lways"), "there is no workspace: {asked:?}");
        terminal.type_in(key);
        let said = terminal.read("last");
        assert!(said.contains(statuses), "the second connection is not asked about: {said:?}");
        assert_eq!(finish(child).code, 0);
        assert_eq!(seen(&place), if key == b"r" { 2 } else { 0 });
    }
}

#[test]
fn once_is_for_one_connection() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let script = format!("{STATUS} status http://good.test/1; status http://good.test/2; echo last");
    let child = start(&terminal, &place, &[], &script);
    terminal.read(CHOICES);
    terminal.type_in(b"o");
    assert!(terminal.read(CHOICES).contains("200\r\n"), "and then it is asked again");
    terminal.type_in(b"n");
    assert!(terminal.read("last").contains("403\r\n"));
    assert_eq!(finish(child).code, 0);
    assert_eq!(seen(&place), 1);
}

#[test]
fn always_is_kept_outside_of_the_workspace_until_it_is_forgotten() {
    let place = Place::new();
    let workspace = place.workspace();
    let flags = ["-w", workspace.to_str().unwrap()];
    let script = format!("{STATUS} status http://good.test/1; status https://good.test/2; echo last");
    let terminal = Terminal::open();
    let child = start(&terminal, &place, &flags, &script);
    assert!(terminal.read(CHOICES).contains("[a]lways for this workspace"));
    terminal.type_in(b"a");
    assert!(terminal.read("last").contains("200\r\n200\r\n"));
    assert_eq!(finish(child).code, 0);
    assert_eq!(std::fs::read_dir(&workspace).unwrap().count(), 0, "nothing is in the workspace");

    let net = |arguments: &[&str]| finish(place.command([&["net", "answers"], arguments].concat()).spawn().unwrap());
    assert_eq!(net(&[]).stdout, format!("{}  good.test\n", workspace.display()));
    // Without a terminal, what was kept still holds, and another host is denied with the reason.
    let again = format!("{script}; curl -sS http://evil.test/");
    let mut without = command(&place, &flags, &again);
    without.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(without.spawn().unwrap());
    assert!(done.stdout.starts_with("200\n200\nlast\n"), "{done:?}");
    assert!(done.stdout.contains("no rule allows evil.test:80, and there is no terminal to ask on"), "{done:?}");

    assert_eq!(net(&["--forget", "good.test"]).stdout, "forgotten in 1 workspace\n");
    assert_eq!(net(&[]).stdout, "");
    assert_ne!(net(&["--forget", "good.test"]).code, 0);
}

#[test]
fn a_hostile_program_can_neither_answer_nor_hide_a_question() {
    let (place, terminal) = (Place::new(), Terminal::open());
    // A fake question, then floods of output in the background while the real one is open.
    let script = format!(
        "printf 'saggar: curl wants to connect to good.test:80\\r\\n  allow it? [o]nce, [N]O: '; read -r line; \
         echo \"got <$line>\"; printf '\\033[8m\\033[?25l\\033(0'; \
         (while :; do echo FLOOD; done) & {STATUS} status http://evil.test/; kill %1; echo last"
    );
    let child = start(&terminal, &place, &[], &script);
    terminal.read("[N]O: ");
    // The answer to a fake question goes to the program, and what is typed ahead of the real one is discarded.
    terminal.type_in(b"r\rrrrrrr");
    let asked = terminal.read(CHOICES);
    assert!(asked.contains("got <r>"), "{asked:?}");
    let question = asked.rfind("saggar: ").expect("a question");
    assert!(asked[question..].starts_with("saggar: curl wants to connect to evil.test:80, and"), "{asked:?}");
    assert!(!asked[question..].contains("FLOOD"), "output is held while a question is open: {asked:?}");
    assert!(asked[..question].ends_with("\u{1b}[0m\r\n"), "colours and the like are reset before it");
    terminal.type_in(b"n");
    let said = terminal.read("last");
    assert!(said.contains("403"), "{said:?}");
    assert_eq!(finish(child).code, 0);
    assert_eq!(seen(&place), 0);
}

#[test]
fn five_questions_a_minute_are_asked_and_special_or_denied_hosts_never() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let script = format!(
        "{STATUS} status http://169.254.169.254/; status http://10.9.9.9/; status http://evil.test/; echo begin; \
         for n in 1 2 3 4 5; do status http://n$n.test/; done; curl -sS --noproxy '*' http://n6.test/; echo last"
    );
    let child = start(&terminal, &place, &["--deny", "evil.test"], &script);
    let before = terminal.read("begin");
    assert!(before.contains("403\r\n403\r\n403\r\n") && !before.contains("wants to connect"), "{before:?}");
    for number in 1..=5 {
        let asked = terminal.read(CHOICES);
        assert!(asked.contains(&format!("n{number}.test:80")), "{asked:?}");
        terminal.type_in(b"n");
    }
    let said = terminal.read("last");
    assert!(said.contains("too many questions were asked") && !said.contains("wants to connect"), "{said:?}");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn ctrl_c_at_a_question_cancels_the_run() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let child = start(&terminal, &place, &[], "curl -sS http://good.test/; echo last; sleep 1000");
    terminal.read(CHOICES);
    terminal.type_in(b"\x03");
    assert_eq!(finish(child).code, 130);
    assert_eq!(seen(&place), 0);
}
