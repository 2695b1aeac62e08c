//! A context for builds: a static shell with its programs, and a Dockerfile that begins with them.

// Each test file links its own copy and uses a part of it.
#![allow(dead_code)]

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::{Done, Place, finish};

const PROGRAMS: &[&str] = &[
    "cat", "chmod", "chown", "cp", "dd", "env", "id", "ln", "ls", "mkdir", "mkfifo", "mknod", "mv", "pwd", "readlink",
    "rm", "seq", "setsid", "sh", "sleep", "stat", "touch", "true", "truncate",
];
/// What every Dockerfile of a context begins with.
const HEAD: &str = "FROM scratch\nCOPY bin /bin\nENV PATH=/bin\n";

pub struct Context<'a> {
    place: &'a Place,
}

impl<'a> Context<'a> {
    pub fn new(place: &'a Place) -> Self {
        let context = Self { place };
        std::fs::create_dir_all(context.path("bin")).expect("ours");
        std::fs::copy("/bin/busybox", context.path("bin/busybox")).expect("make setup-test installs it");
        for name in PROGRAMS {
            symlink("busybox", context.path(&format!("bin/{name}"))).expect("ours");
        }
        context
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path("context").join(name)
    }

    pub fn write(&self, name: &str, content: &str) {
        self.place.write(&format!("context/{name}"), content);
    }

    /// Writes a Dockerfile with these steps after [`HEAD`].
    pub fn dockerfile(&self, steps: &str) {
        self.write("Dockerfile", &format!("{HEAD}{steps}\n"));
    }

    /// The id of a layer of `demo`, counted from the end if it is negative.
    pub fn layer(&self, number: isize) -> String {
        let shown = template_json(self.place, &["show", "demo"]);
        let layers = shown["manifest"]["layers"].as_array().expect("a list");
        let index = if number < 0 { layers.len().wrapping_add_signed(number) } else { number.unsigned_abs() };
        layers[index]["id"].as_str().expect("a digest").to_owned()
    }
}

/// The line of the Dockerfile that a line of the steps is on.
pub fn line(of_steps: usize) -> usize {
    HEAD.lines().count() + of_steps
}

pub fn template(place: &Place, arguments: &[&str]) -> Done {
    finish(place.command([&["template"], arguments].concat()).spawn().expect("the binary was built"))
}

pub fn template_json(place: &Place, arguments: &[&str]) -> Value {
    template(place, &[arguments, &["--json"]].concat()).json()
}

/// `saggar template build context --name demo`.
pub fn build(place: &Place, arguments: &[&str]) -> Done {
    template(place, &[&["build", "context", "--name", "demo"], arguments].concat())
}

pub fn build_json(place: &Place, arguments: &[&str]) -> Value {
    build(place, &[arguments, &["--json"]].concat()).json()
}

/// Runs a program in `demo`, as root inside.
pub fn run(place: &Place, program: &[&str]) -> Done {
    place.run(&["--template", "demo"], program)
}

/// Everything in the store, locks and the cache apart.
pub fn stored(place: &Place) -> Vec<String> {
    let mut found = Vec::new();
    for part in ["names", "manifests", "layers", "staging"] {
        for entry in std::fs::read_dir(place.path("data/templates/local").join(part)).into_iter().flatten().flatten() {
            found.push(format!("{part}/{}", entry.file_name().to_string_lossy()));
        }
    }
    found
}
