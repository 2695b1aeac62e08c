//! Words of the code interpreter: the languages of its contexts, and how an execution ended.

use serde::{Deserialize, Serialize};

use crate::mode::choice;

choice!(
    /// The language of a code context.
    CodeLanguage {
        /// Python 3.8 or later.
        Python = "python",
        /// Node 16 or later.
        JavaScript = "javascript",
        /// Node 22.13 or later, which removes the types.
        TypeScript = "typescript",
        /// Bash 5.
        Bash = "bash",
    }
);

choice!(
    /// How an execution of code ended.
    CodeStatus {
        /// The code ran to its end.
        Ok = "ok",
        /// The code raised an error, or its last command failed.
        Error = "error",
        /// It was interrupted because its client disconnected or asked for it.
        Interrupted = "interrupted",
        /// It was interrupted because it took longer than its timeout.
        TimedOut = "timed_out",
        /// The process of its context ended.
        Died = "died",
    }
);
