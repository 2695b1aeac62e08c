//! `saggar doctor`.

use std::process::ExitCode;

use crate::args::DoctorArguments;

pub(crate) fn main(_arguments: &DoctorArguments) -> ExitCode {
    ExitCode::SUCCESS
}
