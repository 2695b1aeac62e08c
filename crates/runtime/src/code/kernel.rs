//! Kernels: the programs of ours that run code, and what is written to them.
//!
//! They are part of this program, and come through the standard input of the interpreter. So a template needs nothing
//! but the interpreter itself.

use std::collections::BTreeMap;

use saggar_domain::CodeLanguage;
use serde_json::json;

const PYTHON_BOOT: &str = include_str!("kernels/boot.py");
const PYTHON: &str = include_str!("kernels/python.py");
const WARM_BOOT: &str = include_str!("kernels/boot_warm.py");
const WARM: &str = include_str!("kernels/warm.py");
const CHARTS: &str = include_str!("kernels/charts.py");
const NODE_BOOT: &str = include_str!("kernels/boot.js");
const NODE: &str = include_str!("kernels/node.js");
const BASH: &str = include_str!("kernels/bash.sh");
/// Node can't copy a descriptor. 127 is what a shell says of a program that isn't there.
const NODE_START: &str =
    "command -v node >/dev/null 2>&1 || exit 127; exec 3<&0 4>&1 5>&2 </dev/null; exec node -e \"$0\"";
/// The descriptors of bash.sh.
const BASH_REDIRECTED: &str = "</dev/null 1>&250 2>&251 250>&- 251>&-";

/// The command that starts a context's process.
pub(super) fn command(language: CodeLanguage) -> Vec<String> {
    let words: &[&str] = match language {
        CodeLanguage::Python => &["python3", "-c", PYTHON_BOOT],
        CodeLanguage::JavaScript | CodeLanguage::TypeScript => &["/bin/sh", "-c", NODE_START, NODE_BOOT],
        // As for a person, so that an interrupt ends the code and not the shell; without job control and history.
        CodeLanguage::Bash => &["bash", "--norc", "--noprofile", "--noediting", "-i", "+m", "+H"],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The command of a Python context that forks from the sandbox's warm process, if that lives and is ready.
pub(super) fn warm_command() -> Vec<String> {
    ["python3", "-I", "-S", "-c", WARM_BOOT, PYTHON_BOOT].map(str::to_owned).into()
}

/// The first bytes for the warm process.
pub(super) fn warm(imports: &[String]) -> Vec<u8> {
    framed(&json!({ "entry": "warm", "imports": imports, "kernel": format!("{PYTHON}{WARM}"), "charts": CHARTS }))
}

/// What a template needs for it.
pub(super) fn interpreter(language: CodeLanguage) -> &'static str {
    match language {
        CodeLanguage::Python => "python3",
        CodeLanguage::JavaScript | CodeLanguage::TypeScript => "node",
        CodeLanguage::Bash => "bash",
    }
}

/// The first bytes for a new process. It answers them with a message under this nonce.
pub(super) fn hello(language: CodeLanguage, nonce: &str) -> Vec<u8> {
    match language {
        CodeLanguage::Python => framed(&json!({ "nonce": nonce, "kernel": PYTHON, "charts": CHARTS })),
        CodeLanguage::JavaScript | CodeLanguage::TypeScript => {
            framed(&json!({ "nonce": nonce, "kernel": NODE, "language": language }))
        }
        CodeLanguage::Bash => format!("{BASH}__saggar_begin {nonce}\n").into_bytes(),
    }
}

/// A piece of code to run.
pub(super) fn request(language: CodeLanguage, nonce: &str, code: &str, env: &BTreeMap<String, String>) -> Vec<u8> {
    match language {
        CodeLanguage::Python | CodeLanguage::JavaScript | CodeLanguage::TypeScript => {
            framed(&json!({ "nonce": nonce, "code": code, "env": env, "language": language }))
        }
        CodeLanguage::Bash => {
            let env: String = env.iter().map(|(name, value)| format!("{name}={} ", quoted(value))).collect();
            let code = quoted(code);
            format!("__saggar_begin {nonce}\n{env}eval {code} {BASH_REDIRECTED}\n__saggar_end {nonce} $?\n")
                .into_bytes()
        }
    }
}

/// A word of the shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// JSON after its length in eight digits.
fn framed(value: &serde_json::Value) -> Vec<u8> {
    let text = value.to_string();
    format!("{:08x}{text}", text.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_one_word_of_the_shell_whatever_is_in_it() {
        let env = BTreeMap::from([("A".to_owned(), "it's".to_owned())]);
        let request = request(CodeLanguage::Bash, "n", "echo 'a'\n__saggar_end n 0", &env);
        let text = String::from_utf8(request).unwrap();
        assert_eq!(
            text,
            format!(
                "__saggar_begin n\nA='it'\\''s' eval 'echo '\\''a'\\''\n__saggar_end n 0' {BASH_REDIRECTED}\n__saggar_end n $?\n"
            )
        );
    }

    #[test]
    fn a_request_is_as_long_as_it_says() {
        let request = request(CodeLanguage::Python, "n", "é\n", &BTreeMap::new());
        let length = usize::from_str_radix(std::str::from_utf8(&request[..8]).unwrap(), 16).unwrap();
        assert_eq!(request.len(), 8 + length);
    }
}
