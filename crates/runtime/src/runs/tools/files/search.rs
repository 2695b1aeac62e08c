//! Finds a text in the files below a directory.
//!
//! The sandbox sends the files and everything is compared here, so it needs no program inside. How much is read, and
//! how much is told, has bounds; what was left out is said.

use serde_json::json;

use crate::fault::Fault;
use crate::files::{FileKind, Walked};
use crate::permit::Action;
use crate::runs::tools::sandbox::RunSandbox;

/// Matches that are told.
const MATCHES_MAX: usize = 200;
/// Bytes that are read, over all files.
const READ_MAX: u64 = 64 << 20;
/// Bytes of a file that are compared; of a longer one, its beginning.
const FILE_MAX: usize = 1 << 20;
/// Characters of a matching line that are told.
const LINE_MAX: usize = 300;
/// The history of a repository says nothing about its files.
const LEFT_OUT: &[u8] = b".git/";

#[derive(Default)]
struct Found {
    matches: Vec<serde_json::Value>,
    read: u64,
    is_cut: bool,
}

pub(super) async fn search(sandbox: &RunSandbox, action: Action, path: &str, text: &str) -> Result<String, Fault> {
    let top = sandbox.path(path)?;
    let files = sandbox.to_read(action).await?;
    let mut walking = files.walk(&top).await?;
    let mut found = Found::default();
    let mut current: Option<(Vec<u8>, Vec<u8>)> = None;
    let mut skipped = 0u64;
    loop {
        let walked = walking.next().await?;
        match walked {
            Some(Walked::Data(bytes)) => {
                found.read += bytes.len() as u64;
                if let Some((_, content)) = &mut current {
                    let room = FILE_MAX.saturating_sub(content.len());
                    content.extend_from_slice(&bytes[..bytes.len().min(room)]);
                    found.is_cut |= bytes.len() > room;
                }
            }
            other => {
                if let Some((path, content)) = current.take() {
                    found.compare(&path, &content, text);
                }
                match other {
                    Some(Walked::Entry(entry)) if entry.kind == FileKind::File && !is_left_out(&entry.path) => {
                        current = Some((entry.path, Vec::new()));
                    }
                    Some(Walked::Skipped { .. }) => skipped += 1,
                    Some(Walked::Entry(_) | Walked::Data(_)) => {}
                    None => break,
                }
            }
        }
        if found.matches.len() >= MATCHES_MAX || found.read > READ_MAX {
            found.is_cut = true;
            break;
        }
    }
    let Found { matches, is_cut, .. } = found;
    Ok(json!({ "matches": matches, "skipped": skipped, "is_cut": is_cut }).to_string())
}

fn is_left_out(path: &[u8]) -> bool {
    path.starts_with(LEFT_OUT) || path.windows(LEFT_OUT.len() + 1).any(|part| part[0] == b'/' && &part[1..] == LEFT_OUT)
}

impl Found {
    fn compare(&mut self, path: &[u8], content: &[u8], text: &str) {
        // Not a text file.
        if content.contains(&0) {
            return;
        }
        let content = String::from_utf8_lossy(content);
        for (index, line) in content.lines().enumerate().filter(|(_, line)| line.contains(text)) {
            if self.matches.len() >= MATCHES_MAX {
                self.is_cut = true;
                return;
            }
            let shown: String = line.chars().take(LINE_MAX).collect();
            self.matches.push(json!({ "path": String::from_utf8_lossy(path), "line": index + 1, "text": shown }));
        }
    }
}
