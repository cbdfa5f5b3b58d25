"""Environments: by id, a user's own, and a list of those that can be trained.

Importing gymnax takes seconds; so the functions here import it, not these files.
"""

from rlref.envs.gymnax_envs import describe as describe
from rlref.envs.gymnax_envs import imported_gymnax as imported_gymnax
from rlref.envs.ids import make_env as make_env
from rlref.envs.ids import resolved as resolved
from rlref.envs.interface import check_complete as check_complete
from rlref.envs.interface import check_interface as check_interface
from rlref.envs.listing import list_envs as list_envs
from rlref.envs.params import plain_values as plain_values
from rlref.envs.params import with_params as with_params
from rlref.envs.params import with_values as with_values
