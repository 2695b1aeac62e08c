//! A page of documentation as the test sees it: files, commands, what they show, and blocks that are not run.
//!
//! A comment in the line before a block says what to do with it:
//!
//! | mark | meaning |
//! |---|---|
//! | `<!-- not run: REASON -->` | the block can't run in a test; the reason is required |
//! | `<!-- file: NAME -->` | the block is a file that later commands use |
//! | `<!-- repeat until shown -->` | a person is slower than what the command looks at: repeat it until it shows this |
//! | `<!-- server stopped -->` | the page has told the reader to stop the server |
//!
//! What `cargo measure` writes, between its own marks, is not run either.

/// Blocks that are commands.
const COMMANDS: [&str; 2] = ["sh", "console"];
/// Blocks that are not.
const DATA: [&str; 8] = ["toml", "json", "ini", "python", "text", "mermaid", "diff", "rust"];
/// Beginnings of lines that look like commands outside of a block.
const INDENTED: [&str; 5] = ["saggar ", "$ ", "curl ", "make ", "cargo "];

#[derive(Debug, Default)]
pub struct Page {
    pub pieces: Vec<Piece>,
    /// Reasons of the blocks that are not run, with their lines.
    pub not_run: Vec<(usize, String)>,
    /// Code in sentences that begins with `saggar`.
    pub mentions: Vec<(usize, String)>,
}

#[derive(Debug)]
pub struct Piece {
    pub line: usize,
    pub is_stopped_before: bool,
    pub kind: Kind,
}

#[derive(Debug)]
pub enum Kind {
    File { name: String, content: String },
    Script(String),
    Session { commands: Vec<Shown>, is_repeated: bool },
}

/// A command with what it prints.
#[derive(Debug)]
pub struct Shown {
    pub line: usize,
    pub command: String,
    pub output: Vec<String>,
}

/// What the comment before a block says.
#[derive(Debug, Default)]
struct Marks {
    not_run: Option<String>,
    file: Option<String>,
    is_repeated: bool,
    is_stopped: bool,
}

impl Page {
    /// Reads a page, or says what the test could not do with it and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut page = Self::default();
        let mut marks = Marks::default();
        let mut is_measured = false;
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
        while let Some((number, line)) = lines.next() {
            is_measured |= line.starts_with("<!-- measured: begin");
            is_measured &= !line.starts_with("<!-- measured: end");
            if let Some(language) = line.trim_start().strip_prefix("```") {
                let block: Vec<(usize, &str)> =
                    lines.by_ref().take_while(|(_, line)| !line.trim_start().starts_with("```")).collect();
                match is_measured {
                    true => page.not_run.push((number, "what `cargo measure` did when it wrote this".to_owned())),
                    false => page.block(number, language, &block, std::mem::take(&mut marks))?,
                }
                continue;
            }
            if let Some(mark) = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->")) {
                marks.add(number, mark)?;
                continue;
            }
            if marks.is_any() {
                return Err(format!("line {number}: a mark is followed by no block"));
            }
            let indented = line.strip_prefix("    ").unwrap_or_default().trim_start();
            if !is_measured && INDENTED.iter().any(|begin| indented.starts_with(begin)) {
                return Err(format!("line {number}: a command outside of a fenced block is not run: {indented}"));
            }
            let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("saggar "));
            page.mentions.extend(spans.map(|span| (number, span.to_owned())));
        }
        Ok(page)
    }

    fn block(&mut self, number: usize, language: &str, lines: &[(usize, &str)], marks: Marks) -> Result<(), String> {
        let is_command = COMMANDS.contains(&language);
        if !is_command && !DATA.contains(&language) {
            return Err(format!("line {number}: a block of {language:?}: name it sh or console, or what its data is"));
        }
        if let Some(reason) = marks.not_run {
            if reason.split_whitespace().count() < 3 {
                return Err(format!("line {number}: say in words why the block is not run"));
            }
            self.not_run.push((number, reason));
            return Ok(());
        }
        let text = || lines.iter().map(|(_, line)| format!("{line}\n")).collect::<String>();
        let kind = match marks.file {
            Some(name) => Kind::File { name, content: text() },
            None if language == "sh" => Kind::Script(text()),
            None if language == "console" => {
                Kind::Session { commands: session(lines)?, is_repeated: marks.is_repeated }
            }
            None => return Ok(()),
        };
        self.pieces.push(Piece { line: number, is_stopped_before: marks.is_stopped, kind });
        Ok(())
    }
}

impl Marks {
    fn add(&mut self, number: usize, mark: &str) -> Result<(), String> {
        if let Some(reason) = mark.strip_prefix("not run") {
            let reason = reason.strip_prefix(": ").map(str::trim).filter(|reason| !reason.is_empty());
            self.not_run = Some(reason.ok_or_else(|| format!("line {number}: a mark without a reason"))?.to_owned());
        } else if let Some(name) = mark.strip_prefix("file: ") {
            self.file = Some(name.to_owned());
        } else if mark == "repeat until shown" {
            self.is_repeated = true;
        } else if mark == "server stopped" {
            self.is_stopped = true;
        }
        Ok(())
    }

    fn is_any(&self) -> bool {
        self.not_run.is_some() || self.file.is_some() || self.is_repeated || self.is_stopped
    }
}

/// The commands of a session: `$ ` begins one, `> ` goes on with it, and so does what follows a backslash. The rest is output.
fn session(lines: &[(usize, &str)]) -> Result<Vec<Shown>, String> {
    let mut commands: Vec<Shown> = Vec::new();
    for (number, line) in lines {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push(Shown { line: *number, command: command.to_owned(), output: Vec::new() });
            continue;
        }
        let last = commands.last_mut().ok_or_else(|| format!("line {number}: output before the first command"))?;
        let is_continued = last.output.is_empty() && last.command.ends_with('\\');
        match line.strip_prefix("> ").filter(|_| last.output.is_empty()).or(is_continued.then_some(*line)) {
            Some(more) => last.command = format!("{}\n{more}", last.command),
            None => last.output.push(line.trim_end().to_owned()),
        }
    }
    for command in &mut commands {
        while command.output.last().is_some_and(String::is_empty) {
            command.output.pop();
        }
    }
    Ok(commands)
}
