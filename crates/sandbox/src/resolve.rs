//! From what was asked for to a spec that can be started, together with the image that it starts from.

use saggar_domain::{Draft, Problem, Spec, Template, User};

use crate::accounts::{given_by, given_for_any_user};
use crate::templates::{HeldTemplate, Templates};

/// Whether the image's own user is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageUser {
    Default,
    /// Clients of a server name the user of each program. The image's is one of them only if the sandbox asks for it.
    Asked,
}

/// The spec of a sandbox for one program, and its image. The templates are opened only if the draft names one.
pub fn resolve(
    draft: Draft,
    templates: impl FnOnce() -> Result<Templates, Problem>,
) -> Result<(Spec, Option<HeldTemplate>), Problem> {
    resolve_for(draft, templates, ImageUser::Default)
}

pub(crate) fn resolve_for(
    draft: Draft,
    templates: impl FnOnce() -> Result<Templates, Problem>,
    user: ImageUser,
) -> Result<(Spec, Option<HeldTemplate>), Problem> {
    let name = match Template::of(draft.template_name()) {
        Template::Host => return Spec::resolve(draft).map(|spec| (spec, None)),
        Template::Image(name) => name,
    };
    resolve_from(draft, templates()?.find(&name)?, user)
}

/// The same for an image that is held already. The draft's own name of a template is not looked up.
pub fn resolve_held(draft: Draft, held: HeldTemplate) -> Result<(Spec, Option<HeldTemplate>), Problem> {
    resolve_from(draft, held, ImageUser::Default)
}

fn resolve_from(draft: Draft, held: HeldTemplate, user: ImageUser) -> Result<(Spec, Option<HeldTemplate>), Problem> {
    let given = match user {
        // Not even looked up if another one is asked for: a bad user of an image must be avoidable.
        ImageUser::Default if draft.user.is_none() => given_by(&held)?,
        ImageUser::Default | ImageUser::Asked if draft.user == Some(User::Template) => given_by(&held)?,
        ImageUser::Default | ImageUser::Asked => given_for_any_user(&held),
    };
    Ok((Spec::resolve_from(draft, given)?, Some(held)))
}
