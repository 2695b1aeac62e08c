//! `saggar secret --file`: the file that `saggar run` reads, changed without a server and without losing what else is in it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("saggar-secret-file-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("new/secrets.toml")
    }

    fn read(&self) -> String {
        std::fs::read_to_string(self.file()).expect("it is there")
    }

    /// Runs a command with this stdin. Returns exit status, stdout, stderr.
    fn run(&self, arguments: &[&str], stdin: &str) -> (i32, String, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_saggar"))
            .arg("secret")
            .args(arguments)
            .arg("--file")
            .arg(self.file())
            .env("HOME", &self.0)
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built");
        // A command that doesn't read its stdin may be gone already.
        let _ = child.stdin.take().expect("it has a pipe").write_all(stdin.as_bytes());
        let output = child.wait_with_output().expect("our own child");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
        (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
    }

    #[track_caller]
    fn done(&self, arguments: &[&str], stdin: &str) -> String {
        let (code, stdout, stderr) = self.run(arguments, stdin);
        assert_eq!(code, 0, "{stdout} {stderr}");
        stdout
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What stays is in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn secrets_are_stored_changed_listed_and_removed() {
    let place = Place::new("life");
    assert_eq!(place.done(&["list"], ""), "NAME  SLOT  BOUND TO\n");
    assert!(!place.file().exists());
    let set = ["set", "openai", "--bind", "api.openai.com", "--slot", "bearer", "--placeholder-prefix", "sk-"];
    place.done(&set, "sk-\"canary\\one\n");
    assert_eq!((mode(&place.file()), mode(place.file().parent().expect("new"))), (0o600, 0o700));
    let expected = "[openai]\nvalue = \"sk-\\\"canary\\\\one\"\nrules = [\"api.openai.com\"]\nslot = \"bearer\"\nplaceholder_prefix = \"sk-\"\n";
    assert_eq!(place.read(), expected);
    for (name, slot) in [
        ("a", "header:x-key"),
        ("b", "header:authorization:token "),
        ("c", "basic:bot"),
        ("d", "query:key"),
        ("e", "sigv4:AKID:eu-central-1:s3"),
    ] {
        place.done(&["set", name, "--bind", "a.example", "--slot", slot], "canary-other");
        assert!(place.done(&["show", name], "").contains(slot.trim_end()), "{}", place.read());
    }
    place.done(&["set", "openai"], "sk-canary-two");
    place.done(&["set", "openai", "--keep-value", "--bind", "POST api.openai.com/v1/**", "--slot", "bearer"], "");
    let shown = place.done(&["show", "openai", "--json"], "");
    assert!(shown.contains("POST api.openai.com/v1/**") && !shown.contains("canary"), "{shown}");
    assert!(place.read().contains("sk-canary-two") && !place.read().contains("one"));
    assert!(!place.done(&["list"], "").contains("canary"));
    for name in ["a", "b", "c", "d", "e", "openai"] {
        place.done(&["rm", name], "");
    }
    assert_eq!(place.read(), "");
    let (code, _, stderr) = place.run(&["rm", "openai"], "");
    assert!(code == 1 && stderr.contains("no secret \"openai\""), "{stderr}");
}

#[test]
fn what_else_is_in_the_file_stays() {
    let place = Place::new("rest");
    std::fs::create_dir(place.file().parent().expect("new")).expect("ours");
    let mine = "# mine\n[one]\nvalue = \"canary-one\" # note\nrules = [\"a.example\"]\n[one.slot.header]\nname = \"x-key\"\n\n# of two\n[two]\nvalue = \"canary-two\"\nrules = [\"b.example\"]\nslot = \"bearer\"\n";
    std::fs::write(place.file(), mine).expect("ours");
    let (code, _, stderr) = place.run(&["list"], "");
    assert!(code != 0 && stderr.contains("can be read by other users"), "{stderr}");
    std::fs::set_permissions(place.file(), std::fs::Permissions::from_mode(0o600)).expect("ours");
    place.done(&["set", "two"], "canary-new");
    assert!(place.read().starts_with("# mine\n[one]\nvalue = \"canary-one\" # note\n"), "{}", place.read());
    assert!(place.read().ends_with("[two]\nvalue = \"canary-new\"\nrules = [\"b.example\"]\nslot = \"bearer\"\n"));
    place.done(&["rm", "one"], "");
    assert!(!place.read().contains("a.example") && place.read().contains("canary-new"), "{}", place.read());
    // A text that lines can't be told from tables in is written anew, and nothing of it is lost.
    std::fs::write(place.file(), "two = { value = \"canary-two\", rules = [\"b.example\"], slot = \"bearer\" }\n")
        .expect("ours");
    place.done(&["set", "two"], "canary-again");
    assert_eq!(place.read(), "[two]\nvalue = \"canary-again\"\nrules = [\"b.example\"]\nslot = \"bearer\"\n");
    std::fs::write(place.file(), "[two\nvalue = \"canary-two\"").expect("ours");
    let (code, stdout, stderr) = place.run(&["set", "two"], "canary-new");
    assert!(code != 0 && !stderr.contains("canary") && !stdout.contains("canary"), "{stderr}");
    assert!(place.read().contains("canary-two"), "what can't be read is left alone");
}
