//! Our own code.

use staves_erasure::{Code, Kernel, Recipe};

use crate::{Coder, Library, Set};

/// The code of `staves-erasure`.
pub struct Staves {
    kernel: Kernel,
}

impl Staves {
    /// With this kernel.
    pub fn new(kernel: Kernel) -> Staves {
        Staves { kernel }
    }
}

impl Library for Staves {
    fn name(&self) -> String {
        "staves".into()
    }

    fn coder(&self, m: usize, k: usize, _bytes: usize) -> Option<Box<dyn Coder>> {
        let code = Code::new(m, k).ok()?.with_kernel(self.kernel);
        Some(Box::new(Ours { code, recipe: None }))
    }
}

struct Ours {
    code: Code,
    /// The same for all pages of a recovery, so it is made once.
    recipe: Option<Recipe>,
}

impl Coder for Ours {
    fn encode(&mut self, set: &mut Set<'_>) {
        self.code.encode(&set.sources, &mut set.outputs);
    }

    fn decode(&mut self, set: &mut Set<'_>) {
        let (m, lost) = (self.code.m(), set.outputs.len());
        let code = &self.code;
        let recipe = self.recipe.get_or_insert_with(|| {
            let sources: Vec<usize> = (lost..m + lost).collect();
            let wanted: Vec<usize> = (0..lost).collect();
            code.recipe(&sources, &wanted).expect("m of the members")
        });
        recipe.make(&set.sources, &mut set.outputs);
    }
}
