//! Files that are understood, refused or noticed, and texts that must not make the reader panic.

use std::collections::BTreeMap;

use proptest::prelude::*;
use saggar_domain::{Code, Problem};

use super::{Given, Parsed, read};
use crate::recipe::{Action, Base, Command};

fn env_of(name: &str) -> Result<BTreeMap<String, String>, Problem> {
    match name {
        "debian" | "debian:12" | "busybox" => Ok(BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())])),
        other => Err(Problem::new(Code::UnsupportedCapability, format!("there is no template {other:?}"), "import it")),
    }
}

fn parse_with(text: &str, args: &[(&str, &str)]) -> Result<Parsed, Problem> {
    let args = args.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    read(text, Given { args: &args, target: None, env_of: &env_of })
}

fn actions(text: &str) -> Vec<Action> {
    let parsed = parse_with(text, &[("V", "given")]).unwrap_or_else(|problem| panic!("{text}: {}", problem.message));
    parsed.recipe.stages.into_iter().flat_map(|stage| stage.steps).map(|step| step.action).collect()
}

fn shown(text: &str) -> Vec<String> {
    actions(text).iter().map(ToString::to_string).collect()
}

fn shell(action: &Action) -> &str {
    match action {
        Action::Run { command: Command::Shell(line), .. } => line,
        other => panic!("not a line for a shell: {other:?}"),
    }
}

#[test]
fn a_file_is_bounded_while_it_is_read() {
    let message = |text: &str| parse_with(text, &[]).map(|_| ()).unwrap_err().message;
    let many = |head: &str, line: &str, count: usize| format!("{head}{}", line.repeat(count));
    let head = "FROM debian\n";
    assert!(parse_with(&many(head, "RUN x\n", 1000), &[]).is_ok());
    // The line after the last one that is allowed is named, whatever else comes after it.
    let text = format!("{}NONSENSE\n", many(head, "RUN x\n", 1001));
    assert_eq!(message(&text), "line 1002 of the Dockerfile: there are more than 1000 steps");
    let text = format!("{}NONSENSE\n", many("", head, 65));
    assert_eq!(message(&text), "line 65 of the Dockerfile: there are more than 64 stages");
    // 512 KiB, over and over: as values, in the arguments of a RUN, as a default that is not used, and as the environment of stages.
    let long = format!("FROM debian AS first\nARG A={}\n", "x".repeat(512 << 10));
    for line in ["LABEL a=$A\n", "RUN x\n", "ARG B=$A\n", "ARG B=${C:+$A}\n", "ARG B=${A:-x}\n"] {
        assert!(parse_with(&many(&long, line, 15), &[]).is_ok(), "{line}");
        assert!(message(&many(&long, line, 40)).contains("variables come to more than 16 MiB"), "{line}");
    }
    let stages = many(&format!("{long}ENV E=$A\n"), "FROM first\n", 40);
    assert!(message(&stages).contains("variables come to more than 16 MiB"));
}

#[test]
fn instructions_become_steps() {
    let text = "# comment\n\nFROM debian:12 AS build\nRUN echo \\\n  # inside\n\n  two\nrun [\"make\", \"all\"]\nRUN [ -f x ] && y\nCOPY --chown=app:app --chmod=755 a b /dst/\nCOPY [\"a b\", \"/c d/\"]\nWORKDIR /srv\nUSER app\nEXPOSE 80 53/udp\nENTRYPOINT [\"x\"]\nCMD y z\nSHELL [\"/bin/ash\", \"-c\"]\nLABEL a=b\nADD x /y\n";
    assert_eq!(
        shown(text),
        [
            "RUN echo   two",
            "RUN [\"make\",\"all\"]",
            "RUN [ -f x ] && y",
            "COPY a b /dst/",
            "COPY a b /c d/",
            "WORKDIR /srv",
            "USER app",
            "EXPOSE 80/tcp 53/udp",
            "ENTRYPOINT [\"x\"]",
            "CMD y z",
            "SHELL [\"/bin/ash\",\"-c\"]",
            "LABEL a",
            "COPY x /y",
        ]
    );
    let stage = &parse_with(text, &[]).unwrap().recipe.stages[0];
    assert_eq!((stage.name.as_deref(), &stage.from), (Some("build"), &Base::Template("debian:12".to_owned())));
    let lines: Vec<u32> = stage.steps.iter().filter_map(|step| step.line).collect();
    assert_eq!(lines[..4], [4, 8, 9, 10]);
    assert!(
        matches!(&stage.steps[3].action, Action::Copy { chown: Some(chown), chmod: Some(0o755), .. } if chown == "app:app")
    );
}

#[test]
fn variables_are_expanded_except_in_lines_for_a_shell() {
    let text = "ARG BASE=debian\nFROM $BASE\nARG V=default\nARG W=${V}2\nENV PATH=$PATH:/x V2=\"a $V\"\nENV OLD some words\nRUN echo $V\nWORKDIR /$W\nENV V=own\nUSER $V";
    let found = actions(text);
    let Action::Env { set } = &found[0] else { panic!("{found:?}") };
    assert_eq!((set["PATH"].as_str(), set["V2"].as_str()), ("/bin:/x", "a given"));
    assert_eq!(found[1], Action::Env { set: BTreeMap::from([("OLD".to_owned(), "some words".to_owned())]) });
    let Action::Run { args, .. } = &found[2] else { panic!("{found:?}") };
    assert_eq!((shell(&found[2]), args["V"].as_str(), args["W"].as_str()), ("echo $V", "given", "given2"));
    assert_eq!(found[3], Action::Workdir { path: "/given2".to_owned() });
    assert_eq!(found[5], Action::User { user: "own".to_owned() });
}

#[test]
fn stages_use_earlier_ones() {
    let text = "FROM debian AS one\nENV A=1\nFROM One\nENV B=$A\nFROM scratch\nCOPY --from=one /x /\nCOPY --from=0 /x /\nCOPY --from=busybox /bin/sh /\n";
    let recipe = parse_with(text, &[]).unwrap().recipe;
    assert_eq!(recipe.stages[1].from, Base::Stage(0));
    assert_eq!(
        recipe.stages[1].steps[0].action,
        Action::Env { set: BTreeMap::from([("B".to_owned(), "1".to_owned())]) }
    );
    assert_eq!(recipe.stages[2].from, Base::Scratch);
    assert_eq!(recipe.needed(), [0, 2]);
    let args = BTreeMap::new();
    let parsed = read(text, Given { args: &args, target: Some("one"), env_of: &env_of }).unwrap();
    assert_eq!(parsed.recipe.stages.len(), 1);
}

#[test]
fn here_documents_of_run_are_scripts() {
    let found = actions(
        "FROM debian\nRUN <<EOF\necho one\n  echo $X\nEOF\nRUN cat <<-\"A\" > /x && y\n\tinside\n\tA\nRUN cat <<< here\nRUN echo '<<EOF'\n",
    );
    assert_eq!(shell(&found[0]), "echo one\n  echo $X\n");
    assert_eq!(shell(&found[1]), "cat <<-\"A\" > /x && y\n\tinside\n\tA\n");
    assert_eq!(shell(&found[2]), "cat <<< here");
    assert_eq!(shell(&found[3]), "echo '<<EOF'");
}

#[test]
fn the_character_that_escapes_can_be_chosen() {
    let found = actions("# syntax=docker/dockerfile:1\n# escape=`\nFROM debian\nRUN a `\n b\nCOPY c:\\x /y\n");
    assert_eq!(shell(&found[0]), "a  b");
    assert_eq!(found[1].to_string(), "COPY c:\\x /y");
}

#[test]
fn what_is_harmless_is_noticed() {
    let text = "FROM debian\nMAINTAINER me\nVOLUME /data\nHEALTHCHECK CMD true\nSTOPSIGNAL SIGTERM\nRUN --mount=type=cache,target=/x make\n";
    let parsed = parse_with(text, &[("UNUSED", "x"), ("http_proxy", "x")]).unwrap();
    let lines: Vec<u32> = parsed.notices.iter().map(|notice| notice.line).collect();
    assert_eq!(lines, [2, 3, 4, 5, 6, 6]);
    assert!(parsed.notices[5].text.contains("\"UNUSED\""), "{:?}", parsed.notices[5]);
}

#[test]
fn what_is_refused_is_named_with_its_line() {
    for (text, line, part) in [
        ("", 1, "there is no FROM"),
        ("RUN x", 1, "RUN comes before FROM"),
        ("FROM", 1, "FROM is not understood"),
        ("FROM a b c", 1, "FROM is not understood"),
        ("FROM $X", 1, "a variable in it has no value"),
        ("FROM nothing", 1, "there is no template \"nothing\""),
        ("FROM --platform=linux/mips debian", 1, "--platform=linux/mips"),
        ("FROM b AS a\nFROM a AS b", 1, "the stage \"b\" begins on line 2"),
        ("FROM debian AS a\nCOPY --from=b /x /\nFROM debian AS b", 2, "the stage \"b\" is not an earlier one"),
        ("FROM debian AS a\nCOPY --from=a /x /", 2, "the stage \"a\" is not an earlier one"),
        ("FROM debian\nCOPY --from=7 /x /", 2, "the stage \"7\" is not an earlier one"),
        ("FROM debian\n\nCOPPY a b", 3, "the instruction \"COPPY\" is not known"),
        ("FROM debian\nONBUILD RUN x", 2, "ONBUILD"),
        ("FROM debian\nADD https://example.com/x /", 2, "ADD of \"https://example.com/x\""),
        ("FROM debian\nADD x.tar.gz /", 2, "doesn't unpack"),
        ("FROM debian\nRUN --mount=type=secret,id=x y", 2, "--mount=type=secret"),
        ("FROM debian\nRUN --network=host y", 2, "RUN --network"),
        ("FROM debian\nRUN", 2, "names no program"),
        ("FROM debian\nRUN []", 2, "names no program"),
        ("FROM debian\nCOPY x", 2, "needs a source and a destination"),
        ("FROM debian\nCOPY a b /c", 2, "doesn't end with '/'"),
        ("FROM debian\nCOPY $NOTHING /c", 2, "is empty"),
        ("FROM debian\nCOPY --chmod=u+x a /c", 2, "--chmod=u+x"),
        ("FROM debian\nCOPY --exclude=x a /c", 2, "--exclude"),
        ("FROM debian\nCOPY <<EOF /x\ny\nEOF", 2, "here-documents"),
        ("FROM debian\nRUN <<EOF\ny\n", 2, "has no end"),
        ("FROM debian\nENV X", 2, "no value"),
        ("FROM debian\nENV A=1 =2", 2, "not NAME=VALUE"),
        ("FROM debian\nENV A=\"x", 2, "quote"),
        ("FROM debian\nEXPOSE 0", 2, "is not a port"),
        ("FROM debian\nWORKDIR $X", 2, "names no directory"),
        ("FROM debian\nSHELL sh", 2, "SHELL needs a list"),
        ("FROM debian\nARG a-b", 2, "can't be the name"),
        ("# escape=x\nFROM debian", 1, "can't escape"),
    ] {
        let problem = parse_with(text, &[]).err().unwrap_or_else(|| panic!("{text:?} is accepted"));
        assert!(
            problem.message.starts_with(&format!("line {line} of the Dockerfile: ")),
            "{text:?}: {}",
            problem.message
        );
        assert!(problem.message.contains(part), "{text:?}: {}", problem.message);
        assert!(!problem.help.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,200}") {
        let _ = parse_with(&text, &[]); // Any answer will do.
    }

    /// Made of parts that mean something.
    #[test]
    fn no_file_makes_the_reader_panic(parts in prop::collection::vec(prop::sample::select(vec![
        "FROM ", "debian", "scratch", " AS x", "\n", "\\\n", "RUN ", "COPY ", "--from=", "x", "0", "$", "${", "}", ":-", ":+", "A", "=", "\"", "'",
        "[", "]", ",", "<<EOF", "EOF", "# escape=`\n", "#", " ", "\t", "ENV ", "ARG ", "EXPOSE ", "99999", "/", "é", "\u{0}", "`", "\r\n", "ADD ", "SHELL ",
    ]), 0..60)) {
        let _ = parse_with(&parts.concat(), &[("A", "$A")]); // Any answer will do.
    }
}
