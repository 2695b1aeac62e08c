//! Every command that the documentation shows is run here, page by page and in order, and prints what the page shows.
//!
//! A block that can't run in a test says why; how many there are is a number in this file, so that one more is a decision. `pages/page.rs`
//! has the marks that pages use. Python is run by `tests/e2b/test_pages.py`, with E2B's client.

mod harness;
#[path = "pages/page.rs"]
mod page;
#[path = "pages/shell.rs"]
mod shell;
#[path = "pages/shown.rs"]
mod shown;
#[path = "sweep/mod.rs"]
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use harness::{Place, finish, is_root, not_here};
use page::{Kind, Page, Piece, Shown};
use shell::{REPEATED, Shell};
use shown::{Names, agrees};

/// Blocks that are not run. Each page says why at the block itself.
const NOT_RUN: usize = 23;

macro_rules! pages {
    ($($test:ident: $page:literal,)+) => {
        const PAGES: &[&str] = &[$($page),+];
        $(
            #[test]
            fn $test() {
                check($page);
            }
        )+
    };
}

pages! {
    the_readme_shows_what_happens: "README.md",
    the_reference_of_agent_specs_shows_what_happens: "docs/agent.md",
    the_reference_of_the_api_shows_what_happens: "docs/api.md",
    the_page_on_the_code_interpreter_shows_what_happens: "docs/code.md",
    the_page_for_users_of_e2b_shows_what_happens: "docs/coming-from-e2b.md",
    getting_started_shows_what_happens: "docs/getting-started.md",
    the_page_on_network_rules_shows_what_happens: "docs/network.md",
    the_reference_of_run_shows_what_happens: "docs/run.md",
    the_page_on_runs_shows_what_happens: "docs/runs.md",
    the_page_on_sandboxes_shows_what_happens: "docs/sandboxes.md",
    the_page_on_secrets_shows_what_happens: "docs/secrets.md",
    the_page_on_snapshots_shows_what_happens: "docs/snapshots.md",
    the_page_on_the_server_shows_what_happens: "docs/server.md",
    the_reference_of_sandbox_specs_shows_what_happens: "docs/spec.md",
    the_page_on_templates_shows_what_happens: "docs/templates.md",
    the_page_on_verifying_shows_what_happens: "docs/verify.md",
    the_page_on_volumes_shows_what_happens: "docs/volumes.md",
    the_example_of_a_command_shows_what_happens: "examples/command/README.md",
    the_example_of_a_server_shows_what_happens: "examples/server/README.md",
    the_example_of_e2b_shows_what_happens: "examples/e2b/README.md",
    the_example_of_an_agent_shows_what_happens: "examples/agent/README.md",
    the_example_of_five_agents_shows_what_happens: "examples/agents/README.md",
    the_example_of_systemd_shows_what_happens: "examples/systemd/README.md",
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli is two below the top")
}

fn read(name: &str) -> Page {
    let text = std::fs::read_to_string(repository().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    Page::parse(&text).unwrap_or_else(|error| panic!("{name}, {error}"))
}

#[test]
fn the_readme_has_fewer_than_120_lines() {
    let text = std::fs::read_to_string(repository().join("README.md")).expect("it is there");
    assert!(
        text.lines().count() < 120,
        "{} lines: move what is not for the first minute to docs/",
        text.lines().count()
    );
}

/// Does what a page says, from its top to its end. A page of an example is read in a copy of its directory.
fn check(name: &str) {
    let page = read(name);
    if !is_root() {
        return not_here("the pages show limits that an ordinary user has only where cgroups are delegated");
    }
    let copied = name.starts_with("examples/").then(|| repository().join(name));
    let mut shell = Shell::start(copied.as_deref().and_then(Path::parent));
    for piece in &page.pieces {
        check_piece(&mut shell, name, piece);
    }
    shell.end();
}

fn check_piece(shell: &mut Shell, name: &str, piece: &Piece) {
    if piece.is_stopped_before {
        shell.stop();
    }
    match &piece.kind {
        Kind::File { name, content } => shell.write(name, content),
        Kind::Script(script) => {
            let done = shell.run(&format!("set -e\n{script}\nset +e"));
            assert_eq!(done.status, 0, "{name}, line {}:\n{script}\nprinted {:#?}", piece.line, done.lines);
        }
        Kind::Session { commands, is_repeated } => {
            for shown in commands {
                check_command(shell, name, shown, *is_repeated);
            }
        }
    }
}

fn check_command(shell: &mut Shell, name: &str, shown: &Shown, is_repeated: bool) {
    if ["saggar serve", "saggar worker"].iter().any(|begin| shown.command.starts_with(begin)) {
        return shell.run_beside(&shown.command, &shown.output);
    }
    let deadline = Instant::now() + REPEATED;
    loop {
        let done = shell.run(&shown.command);
        let mut names = shell.names.clone();
        // A failure that the page doesn't show would be a surprise.
        if agrees(&shown.output, &done.lines, &mut names) && (done.status == 0 || !shown.output.is_empty()) {
            shell.names = names;
            return;
        }
        assert!(
            is_repeated && Instant::now() < deadline,
            "{name}, line {}:\n$ {}\nshows {:#?}\nprinted {:#?} with status {}",
            shown.line,
            shown.command,
            shown.output,
            done.lines,
            done.status
        );
    }
}

/// Every page of the repository: those at the top, of docs/ and of examples/.
fn there() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut waiting: Vec<PathBuf> = ["", "docs", "examples", "conformance"].iter().map(PathBuf::from).collect();
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(repository().join(&directory)).expect("a directory of the repository") {
            let entry = entry.expect("ours");
            let path = directory.join(entry.file_name());
            if directory == Path::new("examples") && entry.file_type().expect("ours").is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.insert(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}

#[test]
fn every_page_with_commands_is_checked() {
    let pages: BTreeSet<String> = there().into_iter().filter(|name| !read(name).pieces.is_empty()).collect();
    assert_eq!(pages, PAGES.iter().map(|page| (*page).to_owned()).collect());
}

#[test]
fn a_block_that_would_not_be_run_is_an_error() {
    for (text, expected) in [
        ("```\nsaggar run true\n```\n", "line 1: a block of \"\": name it sh or console, or what its data is"),
        ("```bash\ntrue\n```\n", "line 1: a block of \"bash\": name it sh or console, or what its data is"),
        ("<!-- not run -->\n```sh\ntrue\n```\n", "line 1: a mark without a reason"),
        ("<!-- not run:  -->\n```sh\ntrue\n```\n", "line 1: a mark without a reason"),
        ("<!-- not run: slow -->\n```sh\ntrue\n```\n", "line 2: say in words why the block is not run"),
        ("<!-- not run: it is slow -->\ntext\n", "line 2: a mark is followed by no block"),
        ("text\n\n    saggar run true\n", "line 3: a command outside of a fenced block is not run: saggar run true"),
        ("```console\noutput\n$ true\n```\n", "line 2: output before the first command"),
    ] {
        assert_eq!(Page::parse(text).err().as_deref(), Some(expected), "{text}");
    }
    let page = Page::parse("<!-- not run: it is slow -->\n```sh\ntrue\n```\n").expect("it has a reason");
    assert_eq!((page.pieces.len(), page.not_run.len()), (0, 1));
}

#[test]
fn what_is_shown_is_what_was_printed() {
    let id = |letter: &str| format!("sbx_{}", letter.repeat(26));
    let (one, two) = (id("a"), id("b"));
    for (shown, printed, agree) in [
        ("a\nb", "a\nb", true),
        ("a\nb", "a", false),
        ("a", "a\nb", false),
        ("a...c", "a b c", true),
        ("a...c", "a b", false),
        ("a\n...\nd", "a\nb\nc\nd", true),
        ("a\n...\nd", "a\nd", true),
        ("a\n...\nd", "a\nb", false),
        (&format!("{one} {one}"), &format!("{two} {two}"), true),
        (&format!("{one} {one}"), &format!("{two} {one}"), false),
        (&one, "run_aaaaaaaaaaaaaaaaaaaaaaaaaa", false),
    ] {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(agrees(&lines(shown), &lines(printed), &mut Names::new()), agree, "{shown:?} and {printed:?}");
    }
    let mut names = Names::new();
    assert!(agrees(std::slice::from_ref(&one), std::slice::from_ref(&two), &mut names));
    assert_eq!(shown::real(&format!("kill {one}"), &names), format!("kill {two}"));
}

#[test]
fn blocks_that_are_not_run_say_why_and_are_counted() {
    let pages = there();
    let not_run = pages.iter().flat_map(|name| {
        read(name).not_run.into_iter().map(move |(line, reason)| format!("{name}, line {line}: {reason}"))
    });
    let not_run: Vec<String> = not_run.collect();
    assert_eq!(not_run.len(), NOT_RUN, "{not_run:#?}");
}

/// The help of commands, by their words.
#[derive(Default)]
struct Helps(BTreeMap<Vec<String>, String>);

impl Helps {
    fn of(&mut self, command: &[String]) -> &str {
        self.0.entry(command.to_vec()).or_insert_with(|| {
            let words = command.iter().map(String::as_str).chain(["--help"]);
            finish(Place::new().command(words).spawn().expect("the binary was built")).stdout
        })
    }

    /// Whether a command has another of this name below it.
    fn has(&mut self, command: &[String], word: &str) -> bool {
        let help = self.of(command);
        let (_, list) = help.split_once("\nCommands:\n").unwrap_or_default();
        let names = list.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
        let mut names = names.collect::<Vec<_>>().into_iter();
        names.any(|name| name == word)
    }

    /// What is wrong with a command in a sentence, such as `saggar runs answer RUN --question N TEXT`.
    fn complaint(&mut self, mention: &str) -> Option<String> {
        let mut words = mention.split_whitespace().skip(1).peekable();
        let mut command = Vec::new();
        while let Some(word) = words.next_if(|word| self.has(&command, word)) {
            command.push(word.to_owned());
        }
        let is_hidden = words.peek().is_some_and(|word| word.starts_with("__"));
        if command.is_empty() && !is_hidden && !words.peek().is_some_and(|word| word.starts_with('-')) {
            return Some("there is no such command".to_owned());
        }
        let help = self.of(&command);
        let flags = words.take_while(|word| *word != "--").filter(|word| word.starts_with("--"));
        let flags = flags.map(|flag| flag.split(['=', ']', ',']).next().unwrap_or(flag));
        flags.filter(|flag| !help.contains(*flag)).map(|flag| format!("it has no flag {flag}")).next()
    }
}

#[test]
fn commands_in_sentences_are_commands_there_are() {
    let mut helps = Helps::default();
    for name in there() {
        for (line, mention) in read(&name).mentions {
            let complaint = helps.complaint(&mention);
            assert_eq!(complaint, None, "{name}, line {line}: {mention}");
        }
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    for name in there() {
        let text = std::fs::read_to_string(repository().join(&name)).expect("just listed");
        let directory = Path::new(&name).parent().expect("a page is in a directory");
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://") && !target.contains(char::is_whitespace)) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { PathBuf::from(&name) } else { directory.join(path) };
            let path = repository().join(path);
            assert!(path.exists(), "{name} leads to {target}, which isn't there");
            if !heading.is_empty() {
                let page = std::fs::read_to_string(&path).expect("a page");
                let headings: Vec<String> = page.lines().filter_map(heading_of).collect();
                assert!(headings.iter().any(|there| there == heading), "{name} leads to {target}: {headings:?}");
            }
        }
    }
}

/// The name by which a heading is linked to.
fn heading_of(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let letters = title.to_lowercase().replace(' ', "-");
    Some(letters.chars().filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter)).collect())
}
