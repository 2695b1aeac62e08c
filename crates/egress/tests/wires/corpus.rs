//! Real messages, as hexadecimal digits in `corpus/KIND/NAME.hex`; lines with `#` are comments.

use std::path::Path;

pub fn messages(kind: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(kind);
    let mut messages: Vec<(String, Vec<u8>)> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            let digits: String =
                text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| line.chars()).collect();
            (path.file_stem().unwrap().to_string_lossy().into_owned(), from_hex(&digits))
        })
        .collect();
    messages.sort();
    assert!(!messages.is_empty(), "no message in {}", folder.display());
    messages
}

pub fn message(kind: &str, name: &str) -> Vec<u8> {
    messages(kind).into_iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no message {kind}/{name}")).1
}

fn from_hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u32> = digits.chars().map(|digit| digit.to_digit(16).expect("a hexadecimal digit")).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}
