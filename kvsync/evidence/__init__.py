"""How a claim about exactness is made, recorded and checked again: prove, receipts, preregistrations, audits."""
