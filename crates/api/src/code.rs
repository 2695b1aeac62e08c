//! The codes a request can fail with: one table of code, HTTP status and title.
//!
//! A code is stable: it may be matched on by programs, is never reused with another meaning, and is the last part of the problem's `type`.
//! Adding one is one line here; the compiler then asks for nothing else, and the OpenAPI document lists it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal, $title:literal;)+) => {
        /// What kind of problem it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)+
            /// One that this version doesn't know; the problem's `type` names it. Never sent, only read.
            Other,
        }

        impl Code {
            /// Every code that is sent, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The code as programs see it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ Self::Other => "other" }
            }

            /// The HTTP status it is answered with.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ Self::Other => 500 }
            }

            /// What it means, the same for every occurrence.
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ Self::Other => "Something this version has no name for" }
            }
        }
    };
}

codes! {
    /// The request can't be read: malformed JSON, an unknown field, a missing one, a parameter of the wrong kind.
    InvalidRequest = "invalid_request", 400, "The request can't be read";
    /// A value that can't be read or is out of range.
    InvalidValue = "invalid_value", 400, "A value can't be read or is out of range";
    /// Two values that can't both hold.
    Contradiction = "contradiction", 400, "Two values can't both hold";
    /// The same thing given twice, differently.
    AmbiguousMerge = "ambiguous_merge", 400, "The same thing is given twice, differently";
    /// The spec can't be read or isn't one.
    InvalidSpec = "invalid_spec", 400, "The spec is not one";
    /// The workspace can't be used.
    InvalidWorkspace = "invalid_workspace", 400, "The workspace can't be used";
    /// A mount can't be used.
    InvalidMount = "invalid_mount", 400, "A mount can't be used";
    /// A protected path can't be held.
    InvalidProtect = "invalid_protect", 400, "A protected path can't be held";
    /// The stdin given can't be used.
    InvalidStdin = "invalid_stdin", 400, "The stdin can't be used";
    /// A path that could only mean something outside of the sandbox.
    PathOutsideSandbox = "path_outside_sandbox", 400, "The path leads out of the sandbox";
    /// An uploaded archive that is damaged or not one.
    InvalidArchive = "invalid_archive", 400, "The archive can't be read";
    /// No key, an unknown one, a revoked or expired one: not told apart.
    Unauthorized = "unauthorized", 401, "A valid API key is needed";
    /// The key is good, and may not do this.
    Forbidden = "forbidden", 403, "This key may not do that";
    /// The file is there, and the sandbox's user may not.
    PermissionDenied = "permission_denied", 403, "The sandbox's user may not do that";
    /// No such object, or one of somebody else's: not told apart.
    NotFound = "not_found", 404, "There is no such object";
    /// No such file in the sandbox.
    FileNotFound = "file_not_found", 404, "There is no such file";
    /// The address exists, this method on it doesn't.
    MethodNotAllowed = "method_not_allowed", 405, "This method does nothing here";
    /// The client took too long to send its request.
    Timeout = "timeout", 408, "The request took too long to arrive";
    /// Somebody else was first, or the object is not in a state for this.
    Conflict = "conflict", 409, "The object is not in a state for this";
    /// The sandbox has ended.
    SandboxEnded = "sandbox_ended", 409, "The sandbox has ended";
    /// The sandbox is paused and doesn't resume by itself.
    SandboxPaused = "sandbox_paused", 409, "The sandbox is paused";
    /// The run's journal, or something that it names, is not what was written.
    RunDamaged = "run_damaged", 409, "The run's journal is damaged";
    /// The exec has ended.
    ExecEnded = "exec_ended", 409, "The exec has ended";
    /// The idempotency key was used for another request.
    IdempotencyMismatch = "idempotency_mismatch", 409, "The idempotency key belongs to another request";
    /// A directory was needed.
    NotADirectory = "not_a_directory", 409, "This is not a directory";
    /// A file was needed.
    IsADirectory = "is_a_directory", 409, "This is a directory";
    /// It is there already.
    AlreadyExists = "already_exists", 409, "It exists already";
    /// It has something in it.
    DirectoryNotEmpty = "directory_not_empty", 409, "The directory is not empty";
    /// A device, a socket or a pipe: such are not read or written from outside.
    NotARegularFile = "not_a_regular_file", 409, "This is not a regular file";
    /// The file is on a read-only part of the sandbox.
    ReadOnly = "read_only", 409, "This part of the sandbox can't be written";
    /// A body, an archive or a file larger than allowed.
    TooLarge = "too_large", 413, "This is larger than allowed";
    /// The body is of a kind that isn't read here.
    UnsupportedMediaType = "unsupported_media_type", 415, "A body of this type isn't read here";
    /// A range outside of the file.
    RangeNotSatisfiable = "range_not_satisfiable", 416, "The range is outside of the file";
    /// The host, or this version, can't give what was asked for.
    UnsupportedCapability = "unsupported_capability", 422, "This host can't give what was asked for";
    /// A limit that was asked for can't be enforced here.
    UnenforcedLimit = "unenforced_limit", 422, "A limit can't be enforced on this host";
    /// The program isn't there.
    ProgramNotFound = "program_not_found", 422, "The program is not in the sandbox";
    /// The program is there and can't be run.
    ProgramNotExecutable = "program_not_executable", 422, "The program can't be run";
    /// The working directory isn't there or can't be entered.
    InvalidCwd = "invalid_cwd", 422, "The working directory can't be entered";
    /// As many sandboxes, connections or execs as this server takes. Try again after `Retry-After`.
    Capacity = "capacity", 429, "The server is full";
    /// The headers are larger than allowed.
    HeadersTooLarge = "headers_too_large", 431, "The headers are larger than allowed";
    /// Something went wrong in the server.
    Internal = "internal", 500, "Something went wrong in the server";
    /// The kernel refused a step of making the sandbox.
    SetupFailed = "setup_failed", 500, "The sandbox could not be made";
    /// Reading or writing one of the streams failed.
    Stream = "stream", 500, "A stream broke off";
    /// The agent inside the sandbox went away or spoke nonsense.
    GuestLost = "guest_lost", 502, "The sandbox doesn't answer";
    /// Nothing listens on that port in the sandbox.
    PortRefused = "port_refused", 502, "Nothing listens on that port";
    /// The server is starting or going down. Try again after `Retry-After`.
    Unavailable = "unavailable", 503, "The server is not ready";
    /// The sandbox took too long to answer.
    SandboxTimeout = "sandbox_timeout", 504, "The sandbox took too long to answer";
    /// The sandbox's storage is used up.
    DiskFull = "disk_full", 507, "The sandbox's storage is full";
    /// The data directory has no room, or takes no writes: nothing was done. It goes on by itself when that is mended.
    DataDirectory = "data_directory", 507, "The server's data directory can't be written";
}

impl Code {
    /// Reads a code back; one from a newer server is [`Code::Other`].
    pub fn parse(text: &str) -> Self {
        Self::ALL.iter().copied().find(|code| code.as_str() == text).unwrap_or(Self::Other)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::parse(&text))
    }
}

impl From<saggar_domain::Code> for Code {
    fn from(code: saggar_domain::Code) -> Self {
        use saggar_domain::Code as Domain;
        match code {
            Domain::InvalidValue => Self::InvalidValue,
            Domain::Contradiction => Self::Contradiction,
            Domain::AmbiguousMerge => Self::AmbiguousMerge,
            Domain::InvalidSpec => Self::InvalidSpec,
            Domain::InvalidWorkspace => Self::InvalidWorkspace,
            Domain::InvalidMount => Self::InvalidMount,
            Domain::InvalidProtect => Self::InvalidProtect,
            Domain::InvalidStdin => Self::InvalidStdin,
            Domain::UnsupportedCapability => Self::UnsupportedCapability,
            Domain::UnenforcedLimit => Self::UnenforcedLimit,
            Domain::SetupFailed => Self::SetupFailed,
            Domain::ProgramNotFound => Self::ProgramNotFound,
            Domain::ProgramNotExecutable => Self::ProgramNotExecutable,
            Domain::InvalidCwd => Self::InvalidCwd,
            Domain::GuestLost => Self::GuestLost,
            Domain::DataDirectory | Domain::ChangesLost => Self::DataDirectory,
            Domain::Stream => Self::Stream,
            // Of an exec that isn't there, as of any object, not more is told.
            Domain::NoSuchExec => Self::NotFound,
            Domain::SandboxPaused => Self::SandboxPaused,
            Domain::SandboxEnded => Self::SandboxEnded,
            Domain::TooMany => Self::Capacity,
            // A sandbox that was made by an older version can't do what a newer one could.
            Domain::UnsupportedProtocol => Self::UnsupportedCapability,
            Domain::Internal => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_code_is_one_word_one_status_and_reads_back() {
        let mut seen = BTreeSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{code} twice");
            assert!(code.as_str().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{code}");
            assert!((400..600).contains(&code.status()), "{code}");
            assert!(!code.title().ends_with('.'), "{code}");
            assert_eq!(serde_json::from_value::<Code>(serde_json::to_value(code).unwrap()).unwrap(), *code);
        }
        assert_eq!(Code::parse("from_the_future"), Code::Other);
    }

    #[test]
    fn a_code_of_the_domain_keeps_its_name() {
        use saggar_domain::Code as Domain;
        for code in [Domain::InvalidValue, Domain::InvalidCwd, Domain::GuestLost, Domain::UnenforcedLimit] {
            assert_eq!(Code::from(code).as_str(), code.as_str());
        }
    }

    #[test]
    fn the_statuses_that_clients_act_on() {
        for (code, status) in [
            (Code::InvalidRequest, 400),
            (Code::Unauthorized, 401),
            (Code::Forbidden, 403),
            (Code::NotFound, 404),
            (Code::SandboxEnded, 409),
            (Code::TooLarge, 413),
            (Code::UnsupportedMediaType, 415),
            (Code::Capacity, 429),
            (Code::Internal, 500),
            (Code::Unavailable, 503),
            (Code::DiskFull, 507),
        ] {
            assert_eq!(code.status(), status, "{code}");
        }
    }
}
