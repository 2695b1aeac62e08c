//! All enforcement rules, for the check that switches them off one at a time.

use saggar_jail::Rule;
use saggar_jail::seccomp::Group;

use crate::plan::SCRATCH;
use crate::template::{MASKED_DIRECTORIES, MASKED_FILES};

pub fn rules() -> Vec<Rule> {
    let masks = MASKED_FILES.iter().chain(MASKED_DIRECTORIES).chain(&[SCRATCH]);
    let groups = Group::ALL.iter().copied().map(Rule::Seccomp);
    Rule::SINGLE.iter().copied().chain(groups).chain(masks.map(|path| Rule::Mask(path))).collect()
}
