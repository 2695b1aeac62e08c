//! Reads a spec from a file and merges it with the command line.

use std::path::Path;

use saggar_domain::{Access, Code, Draft, DraftLimits, FsMode, Problem, Spec};
use saggar_sandbox::{DataDirectory, HeldTemplate, HostTree, LOCAL_PROJECT, Templates, held_for};

use crate::args::RunArguments;

/// Maximum size of a spec file, in bytes.
const SPEC_LEN_MAX: u64 = 1 << 20;

/// The effective spec of a command line, and the image that it starts from.
pub(crate) fn resolve(arguments: &RunArguments) -> Result<(Spec, Option<HeldTemplate>), Problem> {
    let flags = from_flags(arguments)?;
    let draft = match &arguments.spec {
        None => flags,
        Some(path) => {
            let mut draft = read(path)?.merge(flags)?;
            protect(path, &mut draft)?;
            draft
        }
    };
    if !draft.models.is_none() {
        return Err(Problem::new(
            Code::UnsupportedCapability,
            "models answer to sandboxes of a server, and `saggar run` makes one without",
            "use `saggar sandbox create --net proxied --model NAME`, or leave `models` out",
        ));
    }
    let data = || DataDirectory::open(arguments.data_dir.as_deref());
    saggar_sandbox::resolve(draft, || Ok(Templates::new(&data()?, LOCAL_PROJECT)))
}

/// Write access to the spec file decides what the next sandbox may do, so the sandbox it describes must not have it.
fn protect(path: &Path, draft: &mut Draft) -> Result<(), Problem> {
    for mount in draft.mounts.iter().filter(|mount| mount.access == Access::ReadWrite) {
        // A mount that can't be opened is reported when the sandbox is created.
        let Ok(tree) = HostTree::open(&mount.host, Code::InvalidMount, "mount source") else { continue };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if [path, parent].iter().filter_map(|place| place.canonicalize().ok()).any(|place| tree.holds(&place)) {
            return Err(Problem::new(
                Code::Contradiction,
                format!("the spec file {:?} is in a mount that the sandbox can write", path.display().to_string()),
                "move it outside of writable mounts",
            ));
        }
    }
    if let Some(workspace) = draft.workspace.as_ref().filter(|_| draft.fs != Some(FsMode::ReadOnly)) {
        for held in held_for(workspace, path)? {
            if !draft.protect.contains(&held) {
                draft.protect.push(held);
            }
        }
    }
    Ok(())
}

fn from_flags(arguments: &RunArguments) -> Result<Draft, Problem> {
    let flags = arguments.spec_flags.draft()?;
    Ok(Draft {
        tier: arguments.tier,
        template: arguments.template.clone(),
        workspace: arguments.workspace.clone(),
        fs: arguments.fs,
        protect: arguments.protect.clone(),
        mounts: arguments.mounts.clone(),
        cwd: arguments.cwd.clone(),
        limits: DraftLimits { timeout: arguments.timeout, ..flags.limits },
        strict: arguments.strict.then_some(true),
        ..flags
    })
}

pub fn read(path: &Path) -> Result<Draft, Problem> {
    let name = path.display().to_string();
    let fail = |why: String, help: &str| Problem::new(Code::InvalidSpec, format!("spec file {name:?} {why}"), help);
    let text =
        saggar_given::read_given_text(path, SPEC_LEN_MAX).map_err(|error| fail(error.to_string(), error.help()))?;
    const HELP: &str = "see docs/spec.md for the fields; unknown ones are errors";
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => toml::from_str(&text)
            .map_err(|error| fail(format!("is not a spec: {}", error.to_string().trim_end()), HELP)),
        Some("json") => {
            serde_json::from_slice(text.as_bytes()).map_err(|error| fail(format!("is not a spec: {error}"), HELP))
        }
        _ => Err(fail("is neither .toml nor .json".to_owned(), "use the extension .toml or .json")),
    }
}
