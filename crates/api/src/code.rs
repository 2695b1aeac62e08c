//! The codes a request can fail with: one table of code, HTTP status and title.
//!
//! A code is stable: programs may match on it, it is never reused with another meaning, and it is the last part of
//! the problem's `type`. Adding one takes one line here; the OpenAPI document then lists it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal, $title:literal;)+) => {
        /// The kind of a problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)+
            /// A code that this version doesn't know; the problem's `type` names it. Never sent, only read.
            Other,
        }

        impl Code {
            /// Every code that is sent, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The code's name on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ Self::Other => "other" }
            }

            /// Its HTTP status.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ Self::Other => 500 }
            }

            /// Its meaning, the same for every occurrence.
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ Self::Other => "An error that this version doesn't know" }
            }
        }
    };
}

codes! {
    /// The request is malformed: invalid JSON, an unknown or missing field, or a parameter of the wrong type.
    InvalidRequest = "invalid_request", 400, "The request is malformed";
    /// A value is malformed or out of range.
    InvalidValue = "invalid_value", 400, "A value is malformed or out of range";
    /// Two values contradict each other.
    Contradiction = "contradiction", 400, "Two values contradict each other";
    /// The same setting is given twice with different values.
    AmbiguousMerge = "ambiguous_merge", 400, "A setting is given twice with different values";
    /// The spec is malformed or invalid.
    InvalidSpec = "invalid_spec", 400, "The spec is invalid";
    /// The workspace can't be used.
    InvalidWorkspace = "invalid_workspace", 400, "The workspace can't be used";
    /// A mount can't be used.
    InvalidMount = "invalid_mount", 400, "A mount can't be used";
    /// A protected path can't be protected.
    InvalidProtect = "invalid_protect", 400, "A path can't be protected";
    /// The stdin can't be used.
    InvalidStdin = "invalid_stdin", 400, "The stdin can't be used";
    /// The path leads out of the sandbox.
    PathOutsideSandbox = "path_outside_sandbox", 400, "The path leads out of the sandbox";
    /// The uploaded archive is damaged or not an archive.
    InvalidArchive = "invalid_archive", 400, "The archive can't be read";
    /// The key is missing, unknown, revoked or expired; the response doesn't say which.
    Unauthorized = "unauthorized", 401, "A valid API key is required";
    /// The key is valid, but not allowed to do this.
    Forbidden = "forbidden", 403, "This key is not allowed to do that";
    /// The file exists, but the sandbox's user is not allowed to access it.
    PermissionDenied = "permission_denied", 403, "The sandbox's user is not allowed to do that";
    /// The object doesn't exist, or belongs to another project; the response doesn't say which.
    NotFound = "not_found", 404, "The object does not exist";
    /// The file doesn't exist in the sandbox.
    FileNotFound = "file_not_found", 404, "The file does not exist";
    /// The path exists, but not with this method.
    MethodNotAllowed = "method_not_allowed", 405, "This method is not allowed here";
    /// The client took too long to send its request.
    Timeout = "timeout", 408, "The request took too long to arrive";
    /// The object's state doesn't allow this, or another request came first.
    Conflict = "conflict", 409, "The object's state doesn't allow this";
    /// The sandbox has ended.
    SandboxEnded = "sandbox_ended", 409, "The sandbox has ended";
    /// The sandbox is paused and has no auto-resume.
    SandboxPaused = "sandbox_paused", 409, "The sandbox is paused";
    /// The run's journal, or something that it names, is not what was written.
    RunDamaged = "run_damaged", 409, "The run's journal is damaged";
    /// The exec has ended.
    ExecEnded = "exec_ended", 409, "The exec has ended";
    /// The idempotency key was used for a different request.
    IdempotencyMismatch = "idempotency_mismatch", 409, "The idempotency key was used for a different request";
    /// The path must be a directory.
    NotADirectory = "not_a_directory", 409, "This is not a directory";
    /// The path must not be a directory.
    IsADirectory = "is_a_directory", 409, "This is a directory";
    /// The object already exists.
    AlreadyExists = "already_exists", 409, "It exists already";
    /// The directory isn't empty.
    DirectoryNotEmpty = "directory_not_empty", 409, "The directory is not empty";
    /// The path is a device, a socket or a pipe, which can't be read or written through the API.
    NotARegularFile = "not_a_regular_file", 409, "This is not a regular file";
    /// The file is in a read-only part of the sandbox.
    ReadOnly = "read_only", 409, "This part of the sandbox is read-only";
    /// A body, an archive or a file is too large.
    TooLarge = "too_large", 413, "This is larger than allowed";
    /// The body has an unsupported media type.
    UnsupportedMediaType = "unsupported_media_type", 415, "The body's media type is not supported";
    /// The range is outside of the file.
    RangeNotSatisfiable = "range_not_satisfiable", 416, "The range is outside of the file";
    /// The host, or this version, can't provide what was requested.
    UnsupportedCapability = "unsupported_capability", 422, "This host can't provide what was requested";
    /// A requested limit can't be enforced on this host.
    UnenforcedLimit = "unenforced_limit", 422, "A limit can't be enforced on this host";
    /// The program doesn't exist in the sandbox.
    ProgramNotFound = "program_not_found", 422, "The program does not exist in the sandbox";
    /// The program exists but can't be executed.
    ProgramNotExecutable = "program_not_executable", 422, "The program can't be executed";
    /// The working directory doesn't exist or can't be entered.
    InvalidCwd = "invalid_cwd", 422, "The working directory can't be entered";
    /// The server's limit of sandboxes, connections or execs is reached. Retry after `Retry-After`.
    Capacity = "capacity", 429, "The server is full";
    /// The request's headers are too large.
    HeadersTooLarge = "headers_too_large", 431, "The headers are larger than allowed";
    /// An internal error of the server.
    Internal = "internal", 500, "Internal server error";
    /// The kernel refused a step of creating the sandbox.
    SetupFailed = "setup_failed", 500, "The sandbox could not be created";
    /// Reading or writing a stream failed.
    Stream = "stream", 500, "A stream failed";
    /// The agent inside the sandbox is gone, or violated the protocol.
    GuestLost = "guest_lost", 502, "The sandbox does not respond";
    /// No program listens on that port in the sandbox.
    PortRefused = "port_refused", 502, "No program listens on that port";
    /// The server is starting or stopping. Retry after `Retry-After`.
    Unavailable = "unavailable", 503, "The server is not ready";
    /// A key that secrets are sealed with is missing, or its file can't be used.
    SealingKey = "sealing_key", 503, "The server can't open its secrets";
    /// The sandbox took too long to respond.
    SandboxTimeout = "sandbox_timeout", 504, "The sandbox took too long to respond";
    /// The sandbox's storage is full.
    DiskFull = "disk_full", 507, "The sandbox's storage is full";
    /// The disk of the data directory is full or read-only: nothing was done. The server recovers without a restart
    /// once it is writable again.
    DataDirectory = "data_directory", 507, "The server's data directory is not writable";
}

impl Code {
    /// Parses a code; one from a newer server is [`Code::Other`].
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
            // No operation of the API imports an image or builds one.
            Domain::InvalidValue | Domain::InvalidImage | Domain::BuildFailed => Self::InvalidValue,
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
            // As for any missing object, the response reveals nothing more.
            Domain::NoSuchExec | Domain::NoSuchVolume => Self::NotFound,
            Domain::VolumeInUse => Self::Conflict,
            Domain::VolumeExists => Self::AlreadyExists,
            Domain::SandboxPaused => Self::SandboxPaused,
            Domain::SandboxEnded => Self::SandboxEnded,
            Domain::TooMany => Self::Capacity,
            // A sandbox created by an older version may lack features of a newer one.
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
